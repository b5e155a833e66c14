//! Rounds for messages: the edges of a bipartite multigraph, coloured with as many colours as its degree.
//!
//! ```text
//!   senders   0   1        0 -> A wants a round. 0 is free in round a, A in round b, and they differ:
//!             | \ |        follow from A the rounds a, b, a, ... until a rank is free, and swap them.
//!   receivers A   B        Then A is free in round a too. (König 1916: this never fails.)
//! ```
//!
//! Messages are taken by their distance around the ring of ranks, so that most find a common free round and
//! paths are short.

use crate::schedule::pairs::Pair;

/// The most messages that one rank sends, or receives.
pub(super) fn bound(pairs: &[&Pair]) -> u32 {
    let ranks = ranks(pairs);
    let (mut sent, mut received) = (vec![0u32; ranks], vec![0u32; ranks]);
    for pair in pairs {
        sent[pair.source.index()] += pair.messages.len() as u32;
        received[pair.target.index()] += pair.messages.len() as u32;
    }
    sent.into_iter().chain(received).max().unwrap_or(0)
}

/// The round of each message, in the order of their positions: ascending in each pair, [`bound`] of them in all,
/// and in none of them two messages of one sender or of one receiver.
pub(super) fn colour(pairs: &[&Pair]) -> Vec<u32> {
    let ranks = ranks(pairs);
    let count = pairs.iter().map(|pair| pair.messages.end).max().unwrap_or(0) as usize;
    let mut colouring = Colouring {
        ends: vec![[0; 2]; count],
        round_of: vec![FREE; count],
        taken: [vec![Vec::new(); ranks], vec![Vec::new(); ranks]],
        lowest: [vec![0; ranks], vec![0; ranks]],
        path: Vec::new(),
    };
    let mut order: Vec<&Pair> = pairs.to_vec();
    order.sort_by_key(|pair| {
        let distance = (pair.target.index() + ranks - pair.source.index()) % ranks;
        (distance, pair.source)
    });
    for pair in order {
        for message in pair.messages.clone() {
            colouring.ends[message as usize] = [pair.source.0, pair.target.0];
            colouring.insert(message);
        }
    }
    for pair in pairs {
        colouring.round_of[pair.messages.start as usize..pair.messages.end as usize].sort_unstable();
    }
    colouring.round_of
}

fn ranks(pairs: &[&Pair]) -> usize {
    pairs.iter().map(|pair| pair.source.max(pair.target).index() + 1).max().unwrap_or(0)
}

/// No message, or no round.
const FREE: u32 = u32::MAX;

const SENDER: usize = 0;
const RECEIVER: usize = 1;

struct Colouring {
    /// Sender and receiver of each message.
    ends: Vec<[u32; 2]>,
    round_of: Vec<u32>,
    /// For each side, rank and round, the message that it has there; rounds past the end are free.
    taken: [Vec<Vec<u32>>; 2],
    /// For each side and rank, a round below which none is free.
    lowest: [Vec<u32>; 2],
    /// The messages whose rounds are being swapped.
    path: Vec<u32>,
}

impl Colouring {
    fn insert(&mut self, message: u32) {
        let [sender, receiver] = self.ends[message as usize];
        let of_sender = self.free(SENDER, sender);
        let of_receiver = self.free(RECEIVER, receiver);
        let round = if self.at(RECEIVER, receiver, of_sender) == FREE {
            of_sender
        } else if self.at(SENDER, sender, of_receiver) == FREE {
            of_receiver
        } else {
            self.swap_from(receiver, of_sender, of_receiver);
            of_sender
        };
        self.put(message, round);
    }

    /// The message that a rank has in a round.
    fn at(&self, side: usize, rank: u32, round: u32) -> u32 {
        self.taken[side][rank as usize].get(round as usize).copied().unwrap_or(FREE)
    }

    /// The first round in which a rank has nothing to send, or to receive.
    fn free(&mut self, side: usize, rank: u32) -> u32 {
        let mut round = self.lowest[side][rank as usize];
        while self.at(side, rank, round) != FREE {
            round += 1;
        }
        self.lowest[side][rank as usize] = round;
        round
    }

    /// Swaps two rounds along the path that leaves a receiver by the first of them. It cannot come to a sender
    /// that is free in that round, for it enters senders by that round.
    fn swap_from(&mut self, receiver: u32, first: u32, second: u32) {
        let mut path = std::mem::take(&mut self.path);
        let (mut side, mut rank, mut rounds) = (RECEIVER, receiver, [first, second]);
        loop {
            let message = self.at(side, rank, rounds[0]);
            if message == FREE {
                break;
            }
            path.push(message);
            side = 1 - side;
            rank = self.ends[message as usize][side];
            rounds.swap(0, 1);
        }
        for &message in &path {
            self.take_out(message);
        }
        for message in path.drain(..) {
            let round = self.round_of[message as usize];
            self.put(message, if round == first { second } else { first });
        }
        self.path = path;
    }

    fn put(&mut self, message: u32, round: u32) {
        self.round_of[message as usize] = round;
        for side in [SENDER, RECEIVER] {
            let rounds = &mut self.taken[side][self.ends[message as usize][side] as usize];
            if rounds.len() <= round as usize {
                rounds.resize(round as usize + 1, FREE);
            }
            rounds[round as usize] = message;
        }
    }

    /// Takes a message out of its round, which it still remembers.
    fn take_out(&mut self, message: u32) {
        let round = self.round_of[message as usize];
        for side in [SENDER, RECEIVER] {
            let rank = self.ends[message as usize][side] as usize;
            self.taken[side][rank][round as usize] = FREE;
            self.lowest[side][rank] = self.lowest[side][rank].min(round);
        }
    }
}
