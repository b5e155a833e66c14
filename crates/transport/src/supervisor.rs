//! The one thread that serves a world: connections, requests, deaths.
//!
//! ```text
//!   poll ─┬─ listener: a process comes          ─► same user? keep it
//!         ├─ socket: a request                  ─► registry ─► reply
//!         ├─ socket: closed, no goodbye         ─► wait a moment for the exit status ─► failure
//!         ├─ process ended badly, or joins late ─► failure
//!         └─ bell, grace is over                ─► kill and reap all
//! ```

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use reshard_layout::Rank;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, bind, listen};
use rustix::process::geteuid;

use crate::child::RankProcess;
use crate::control::RankState;
use crate::error::TransportError;
use crate::launcher::{Exit, Limits, Outcome};
use crate::message::{Received, Reply, Request, receive, send};
use crate::park;
use crate::registry::Registry;
use crate::rendezvous::socket_and_address;
use crate::world::{RANK_VARIABLE, RENDEZVOUS_VARIABLE};

/// How long the cause of a closed socket is looked for in the exit status of the process.
const DEATH_WAIT: Duration = Duration::from_millis(500);

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

#[derive(Debug)]
struct Peer {
    socket: OwnedFd,
    rank: Option<Rank>,
    closed: bool,
}

/// The state of the supervising thread.
#[derive(Debug)]
pub(crate) struct Supervisor {
    name: String,
    limits: Limits,
    /// None once it failed.
    listener: Option<OwnedFd>,
    bell: Arc<OwnedFd>,
    stop: Arc<AtomicBool>,
    registry: Registry,
    peers: Vec<Peer>,
    processes: Vec<RankProcess>,
    /// Ranks whose socket closed without a goodbye, and until when their exit status is waited for.
    deaths: HashMap<Rank, Instant>,
    /// By when all started processes must have joined.
    join_ends: Option<Instant>,
    /// When survivors of a failure are killed.
    grace_ends: Option<Instant>,
}

impl Supervisor {
    /// Listens under a fresh name, for a world of `size` ranks.
    pub(crate) fn new(
        size: usize,
        limits: Limits,
        bell: Arc<OwnedFd>,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, TransportError> {
        let name = fresh_name();
        let (listener, address) = socket_and_address(&name)?;
        bind(&listener, &address).map_err(|e| TransportError::system("bind the rendezvous", e))?;
        listen(&listener, BACKLOG).map_err(|e| TransportError::system("listen at the rendezvous", e))?;
        // So that a connection that is gone again cannot hold up everybody.
        ioctl_fionbio(&listener, true).map_err(|e| TransportError::system("listen at the rendezvous", e))?;
        Ok(Self {
            name,
            limits,
            listener: Some(listener),
            bell,
            stop,
            registry: Registry::new(size)?,
            peers: Vec::new(),
            processes: Vec::new(),
            deaths: HashMap::new(),
            join_ends: None,
            grace_ends: None,
        })
    }

    /// The rendezvous' name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Starts the ranks' processes and returns their process ids.
    pub(crate) fn spawn(
        &mut self,
        commands: Vec<(Rank, Command)>,
    ) -> Result<Vec<(Rank, u32)>, TransportError> {
        let size = self.registry.control().size();
        for (rank, mut command) in commands {
            if rank.index() >= size {
                return Err(TransportError::RankOutOfRange { rank, size });
            }
            if self.processes.iter().any(|process| process.rank() == rank) {
                return Err(TransportError::RankTaken { rank });
            }
            command.env(RENDEZVOUS_VARIABLE, &self.name).env(RANK_VARIABLE, rank.to_string());
            self.processes.push(RankProcess::spawn(rank, &mut command)?);
        }
        self.join_ends = Some(Instant::now() + self.limits.join.min(park::LONGEST));
        Ok(self.processes.iter().map(|process| (process.rank(), process.id())).collect())
    }

    /// Serves until the world is over.
    pub(crate) fn run(mut self) -> Outcome {
        while !self.is_over() {
            let ready = self.wait_for_events();
            if self.stop.load(Ordering::Acquire) {
                return self.abort();
            }
            if ready.listener {
                self.welcome();
            }
            for index in ready.peers {
                self.serve(index);
            }
            self.peers.retain(|peer| !peer.closed);
            self.reap();
            self.settle_deaths();
            self.check_joined();
            let failed = self.registry.control().failure().is_some();
            if failed && self.grace_ends.is_none() {
                self.grace_ends = Some(Instant::now() + self.limits.grace.min(park::LONGEST));
            }
        }
        self.abort()
    }

    /// Kills what still runs and tells how everything ended.
    pub(crate) fn abort(mut self) -> Outcome {
        self.processes.iter_mut().for_each(RankProcess::kill);
        self.processes.iter_mut().for_each(RankProcess::reap);
        let ended =
            |process: &RankProcess| process.status().map(|status| Exit { rank: process.rank(), status });
        let mut exits: Vec<Exit> = self.processes.iter().filter_map(ended).collect();
        exits.sort_by_key(|exit| exit.rank);
        Outcome { exits, failure: self.registry.control().failure() }
    }

    fn is_over(&self) -> bool {
        let ended = self.processes.iter().all(|process| process.status().is_some());
        let settled = ended && self.deaths.is_empty();
        let failed = self.registry.control().failure().is_some();
        let own = !self.processes.is_empty();
        // A failed world whose ranks are not all the launcher's own lasts its grace period, so that they learn of it.
        (settled && (self.registry.all_left() || (failed && own && self.peers.is_empty())))
            || self.grace_ends.is_some_and(|end| Instant::now() >= end)
    }

    fn wait_for_events(&mut self) -> Ready {
        let running: Vec<&RankProcess> =
            self.processes.iter().filter(|process| process.status().is_none()).collect();
        let mut waited = vec![PollFd::new(&*self.bell, PollFlags::IN)];
        waited.extend(self.peers.iter().map(|peer| PollFd::new(&peer.socket, PollFlags::IN)));
        waited.extend(
            running.iter().map(|process| PollFd::from_borrowed_fd(process.descriptor(), PollFlags::IN)),
        );
        waited.extend(self.listener.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
        let ends = self.join_ends.into_iter().chain(self.grace_ends);
        let next = self.deaths.values().copied().chain(ends).min();
        let timeout = next.map(|at| {
            // A millisecond more, so that the moment has passed when the wait ends.
            let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: i64::from(left.subsec_nanos()) }
        });
        let polled = poll(&mut waited, timeout.as_ref());
        let is_ready = |index: usize| polled.is_ok() && !waited[index].revents().is_empty();
        let peers = (0..self.peers.len()).filter(|peer| is_ready(1 + peer)).collect();
        let ready = Ready { listener: self.listener.is_some() && is_ready(waited.len() - 1), peers };
        if let Err(error) = polled
            && error != Errno::INTR
        {
            self.registry.fail(TransportError::system("wait for ranks", error));
        }
        ready
    }

    fn welcome(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        let socket = match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(Errno::INTR | Errno::AGAIN | Errno::CONNABORTED) => return,
            Err(error) => {
                // No descriptor is left, say: who waits to be let in sees the listener closed.
                self.registry.fail(TransportError::system("let a rank in", error));
                self.listener = None;
                return;
            }
        };
        let expected = geteuid();
        let Ok(credentials) = socket_peercred(&socket) else {
            return;
        };
        if credentials.uid == expected {
            self.peers.push(Peer { socket, rank: None, closed: false });
        } else {
            let error =
                TransportError::ForeignUser { expected: expected.as_raw(), found: credentials.uid.as_raw() };
            // The stranger may be gone already.
            let _sent = send(socket.as_fd(), &Reply::Refused { error }, None, SendFlags::DONTWAIT);
        }
    }

    fn serve(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        let (request, descriptor) = match receive::<Request>(&peer.socket, RecvFlags::DONTWAIT) {
            Received::Message(request, descriptor) => (request, descriptor),
            Received::Nothing => return,
            Received::Closed | Received::Garbage(_) => return self.hang_up(index),
        };
        let from = match (peer.rank, &request) {
            (None, Request::Join { rank }) => *rank,
            (None, _) | (Some(_), Request::Join { .. }) => return self.hang_up(index),
            (Some(rank), _) => rank,
        };
        let Some((reply, descriptor)) = self.registry.serve(from, request, descriptor) else {
            return;
        };
        if matches!(reply, Reply::Welcome { .. }) {
            peer.rank = Some(from);
        }
        let descriptor = descriptor.as_ref().map(|descriptor| descriptor.as_fd());
        if send(peer.socket.as_fd(), &reply, descriptor, SendFlags::DONTWAIT).is_err() {
            self.hang_up(index);
        }
    }

    fn hang_up(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        peer.closed = true;
        if let Some(rank) = peer.rank
            && self.registry.control().state(rank) != RankState::Left
        {
            self.deaths.insert(rank, Instant::now() + DEATH_WAIT);
        }
    }

    fn reap(&mut self) {
        for process in &mut self.processes {
            if process.status().is_some() {
                continue;
            }
            let Some(status) = process.try_reap() else {
                continue;
            };
            let rank = process.rank();
            let absent = self.registry.control().state(rank) == RankState::Absent;
            if absent {
                let cause = format!("{} before it joined", describe(status));
                self.registry.fail(TransportError::PeerFailed { rank, cause });
            } else if !status.success() {
                self.registry.fail(TransportError::PeerFailed { rank, cause: describe(status) });
            }
        }
    }

    /// A started process that has not joined in time is a failure.
    fn check_joined(&mut self) {
        let is_absent = |rank: &Rank| self.registry.control().state(*rank) == RankState::Absent;
        let ranks: Vec<Rank> = self.processes.iter().map(RankProcess::rank).filter(is_absent).collect();
        if ranks.is_empty() {
            self.join_ends = None;
        } else if self.join_ends.is_some_and(|end| Instant::now() >= end) {
            self.join_ends = None;
            let seconds = self.limits.join.as_secs();
            self.registry.fail(TransportError::NotJoined { ranks, seconds });
        }
    }

    /// Turns closed sockets into failures, with the exit status where it has come.
    fn settle_deaths(&mut self) {
        let now = Instant::now();
        let status_of = |rank: Rank| self.processes.iter().find(|process| process.rank() == rank);
        let mut settled: Vec<(Rank, Instant, String)> = Vec::new();
        for (&rank, &until) in &self.deaths {
            let closed = "connection closed without a goodbye";
            match status_of(rank).map(RankProcess::status) {
                Some(Some(status)) => settled.push((rank, until, format!("{closed}: {}", describe(status)))),
                Some(None) if now < until => {}
                _ => settled.push((rank, until, format!("{closed} (killed or crashed)"))),
            }
        }
        // In the order of their deaths, so that the first one is the failure.
        settled.sort_by_key(|&(rank, until, _)| (until, rank));
        for (rank, _, cause) in settled {
            self.deaths.remove(&rank);
            self.registry.fail(TransportError::PeerFailed { rank, cause });
        }
    }
}

struct Ready {
    listener: bool,
    peers: Vec<usize>,
}

fn describe(status: ExitStatus) -> String {
    // `exit status: 3`, `signal: 9 (SIGKILL)`
    format!("process ended with {status}")
}

/// A name that no other launcher has: this process, and random digits.
fn fresh_name() -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("reshard-{}-{:016x}", std::process::id(), RandomState::new().hash_one(0))
}
