//! What a world knows: who is in it, its groups, its storages, its first failure.
//!
//! ```text
//!   hub process: socket ──► Registry ◄── one thread         threads: World ──► Mutex<Registry>
//! ```
//!
//! The same registry serves ranks that are processes and ranks that are threads.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use reshard_layout::Rank;

use crate::control::{Control, RankState};
use crate::error::TransportError;
use crate::mailbox::Mailboxes;
use crate::memory::CommonMemory;
use crate::message::{Reply, Request};

/// A reply, and the descriptor that goes with it.
pub(crate) type Answer = (Reply, Option<Arc<OwnedFd>>);

#[derive(Debug)]
struct GroupMemory {
    descriptor: Arc<OwnedFd>,
    /// Members that have asked for it: each gets it once.
    given: HashSet<Rank>,
}

#[derive(Debug)]
struct Published {
    descriptor: Arc<OwnedFd>,
    generation: u64,
}

/// The state of one world.
#[derive(Debug)]
pub(crate) struct Registry {
    control: Control,
    control_descriptor: Arc<OwnedFd>,
    groups: HashMap<(Vec<Rank>, u32), GroupMemory>,
    storages: HashMap<(Rank, String), Published>,
    generations: u64,
}

impl Registry {
    /// A world of `size` ranks, none of which has joined.
    pub(crate) fn new(size: usize) -> Result<Self, TransportError> {
        let (control, descriptor) = Control::create(size)?;
        Ok(Self {
            control,
            control_descriptor: Arc::new(descriptor),
            groups: HashMap::new(),
            storages: HashMap::new(),
            generations: 0,
        })
    }

    /// The page that all ranks see.
    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    /// Records a failure unless there is one already; returns the first.
    pub(crate) fn fail(&mut self, error: TransportError) -> TransportError {
        self.control.record(error)
    }

    /// Whether every rank has joined and left again.
    pub(crate) fn all_left(&self) -> bool {
        (0..self.control.size()).all(|rank| self.control.state(Rank(rank as u32)) == RankState::Left)
    }

    /// Answers one request of a rank; `None` to one that wants no answer.
    pub(crate) fn serve(
        &mut self,
        from: Rank,
        request: Request,
        descriptor: Option<OwnedFd>,
    ) -> Option<Answer> {
        let answer = match request {
            Request::Join { rank } => self.join(rank),
            Request::Group { members, instance } => self.group(from, members, instance),
            Request::Publish { name } => self.publish(from, name, descriptor),
            Request::Withdraw { name } => {
                self.storages.remove(&(from, name));
                Ok((Reply::Withdrawn, None))
            }
            Request::Find { rank, name } => self.find(rank, name),
            Request::Fail { error } => Ok((Reply::Failed { error: self.fail(error) }, None)),
            Request::Goodbye => {
                self.control.set_state(from, RankState::Left);
                return None;
            }
        };
        Some(answer.unwrap_or_else(|error| (Reply::Refused { error }, None)))
    }

    fn join(&mut self, rank: Rank) -> Result<Answer, TransportError> {
        let size = self.control.size();
        if rank.index() >= size {
            return Err(TransportError::RankOutOfRange { rank, size });
        }
        if let Some(failure) = self.control.failure() {
            return Err(failure);
        }
        if self.control.state(rank) != RankState::Absent {
            return Err(TransportError::RankTaken { rank });
        }
        self.control.set_state(rank, RankState::Joined);
        Ok((Reply::Welcome { size }, Some(Arc::clone(&self.control_descriptor))))
    }

    fn group(&mut self, from: Rank, members: Vec<Rank>, instance: u32) -> Result<Answer, TransportError> {
        if let Err(cause) = check_members(from, &members, self.control.size()) {
            return Err(TransportError::InvalidGroup { rank: from, members, cause });
        }
        let key = (members, instance);
        let memory = match self.groups.entry(key.clone()) {
            Entry::Occupied(memory) => memory.into_mut(),
            Entry::Vacant(place) => {
                let size = place.key().0.len();
                let (_memory, descriptor) = CommonMemory::create(Mailboxes::bytes(size))?;
                place.insert(GroupMemory { descriptor: Arc::new(descriptor), given: HashSet::new() })
            }
        };
        let descriptor = Arc::clone(&memory.descriptor);
        if !memory.given.insert(from) {
            let (rank, cause) = (from, "it has made it before".to_owned());
            return Err(TransportError::InvalidGroup { rank, members: key.0, cause });
        }
        if memory.given.len() == key.0.len() {
            self.groups.remove(&key);
        }
        Ok((Reply::Group, Some(descriptor)))
    }

    fn publish(
        &mut self,
        from: Rank,
        name: String,
        descriptor: Option<OwnedFd>,
    ) -> Result<Answer, TransportError> {
        let doing = || format!("publishing storage {name} of rank {from}");
        let descriptor = descriptor.ok_or_else(|| TransportError::no_descriptor(&doing()))?;
        self.generations += 1;
        let generation = self.generations;
        self.storages.insert((from, name), Published { descriptor: Arc::new(descriptor), generation });
        Ok((Reply::Published { generation }, None))
    }

    fn find(&self, rank: Rank, name: String) -> Result<Answer, TransportError> {
        match self.storages.get(&(rank, name.clone())) {
            Some(storage) => {
                let found = Reply::Found { generation: storage.generation };
                Ok((found, Some(Arc::clone(&storage.descriptor))))
            }
            None => Err(TransportError::StorageUnknown { rank, name }),
        }
    }
}

/// Whether a list of ranks is a group that `from` may ask for; the reason where it is not.
pub(crate) fn check_members(from: Rank, members: &[Rank], size: usize) -> Result<(), String> {
    if !members.contains(&from) {
        return Err("it is not among them".to_owned());
    }
    let mut seen = HashSet::new();
    for member in members {
        if member.index() >= size {
            return Err(format!("rank {member} is out of range: the world has {size} ranks"));
        }
        if !seen.insert(member) {
            return Err(format!("rank {member} is in it twice"));
        }
    }
    Ok(())
}
