//! A world: ranks that meet by name, make groups, and show each other their storages.
//!
//! ```text
//!   World::from_environment()?   ── a process that a launcher started, or one that knows the name and a rank
//!   World::in_process(4)?        ── four ranks for four threads, over the same memory and the same code
//!        .group(&[0, 2])?        ── collectives among some of them
//!        .leave()?               ── the good end; anything else is a failure that every other rank sees
//! ```

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reshard_layout::Rank;

use crate::error::{TransportError, shortened};
use crate::group::Group;
use crate::mailbox::Mailboxes;
use crate::memory::{PeerMemory, SharedMemory};
use crate::message::{Reply, Request};
use crate::registry::{Registry, check_members};
use crate::rendezvous::{Membership, WorldId, lock};

/// How long a rank waits for others unless told otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// The environment variable that holds the rendezvous' name in a launched rank.
pub const RENDEZVOUS_VARIABLE: &str = "RESHARD_RENDEZVOUS";

/// The environment variable that holds the rank's number in a launched rank.
pub const RANK_VARIABLE: &str = "RESHARD_RANK";

/// One rank's place in a world.
///
/// Dropping a world without [`leave`](Self::leave) is a failure of the rank, so that `?` and panics reach
/// the other ranks as errors instead of as silence.
#[derive(Debug)]
pub struct World {
    membership: Arc<Membership>,
    /// How many groups of the same members this rank has made.
    instances: Mutex<HashMap<Vec<Rank>, u32>>,
    /// Held while storages are made known, so that those of one call have numbers next to each other.
    publishing: Mutex<()>,
    left: bool,
}

impl World {
    /// Joins the world of this name as this rank, and waits until all its ranks have.
    ///
    /// # Errors
    /// [`TransportError::NoRendezvous`], [`TransportError::RankOutOfRange`], [`TransportError::RankTaken`],
    /// [`TransportError::ForeignUser`]; and, as every waiting call, the first failure of any rank,
    /// [`TransportError::Timeout`] or [`TransportError::LauncherGone`].
    pub fn join(name: &str, rank: Rank) -> Result<Self, TransportError> {
        Self::join_within(name, rank, DEFAULT_TIMEOUT)
    }

    /// As [`join`](Self::join); this and every later wait of this rank give up after `timeout`.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn join_within(name: &str, rank: Rank, timeout: Duration) -> Result<Self, TransportError> {
        Ok(Self::new(Membership::join(name, rank, timeout)?))
    }

    /// Joins as the rank that the launcher made this process.
    ///
    /// # Errors
    /// [`TransportError::Environment`] if this process was not started by a launcher; else as
    /// [`join`](Self::join).
    pub fn from_environment() -> Result<Self, TransportError> {
        Self::from_environment_within(DEFAULT_TIMEOUT)
    }

    /// As [`from_environment`](Self::from_environment), with a timeout as in
    /// [`join_within`](Self::join_within).
    ///
    /// # Errors
    /// As [`from_environment`](Self::from_environment).
    pub fn from_environment_within(timeout: Duration) -> Result<Self, TransportError> {
        let read = |variable: &str, expected: &str| {
            std::env::var(variable).map_err(|error| TransportError::Environment {
                variable: variable.to_owned(),
                expected: expected.to_owned(),
                found: error.to_string(),
            })
        };
        let name = read(RENDEZVOUS_VARIABLE, "the rendezvous' name")?;
        let expected = "a rank";
        let found = read(RANK_VARIABLE, expected)?;
        let rank = found.parse().map_err(|_| TransportError::Environment {
            variable: RANK_VARIABLE.to_owned(),
            expected: expected.to_owned(),
            found,
        })?;
        Self::join_within(&name, Rank(rank), timeout)
    }

    /// A world of `size` ranks in this process, one for each of as many threads.
    ///
    /// # Errors
    /// [`TransportError::System`] if the system has no memory or no descriptor left.
    pub fn in_process(size: usize) -> Result<Vec<Self>, TransportError> {
        Self::in_process_within(size, DEFAULT_TIMEOUT)
    }

    /// As [`in_process`](Self::in_process), with a timeout as in [`join_within`](Self::join_within).
    ///
    /// # Errors
    /// As [`in_process`](Self::in_process).
    pub fn in_process_within(size: usize, timeout: Duration) -> Result<Vec<Self>, TransportError> {
        let registry = Arc::new(Mutex::new(Registry::new(size)?));
        let id = WorldId::fresh();
        let join = |rank| Membership::join_threads(&registry, &id, Rank(rank as u32), timeout);
        (0..size).map(|rank| Ok(Self::new(join(rank)?))).collect()
    }

    fn new(membership: Membership) -> Self {
        Self {
            membership: Arc::new(membership),
            instances: Mutex::default(),
            publishing: Mutex::default(),
            left: false,
        }
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.membership.rank()
    }

    /// Tells this world from others.
    pub(crate) fn id(&self) -> WorldId {
        self.membership.world()
    }

    /// The number of ranks of the world.
    #[must_use]
    pub fn size(&self) -> usize {
        self.membership.size()
    }

    /// The group of these ranks, in this order. All members make the same groups in the same order; this
    /// rank is one of them. Does not wait for the others.
    ///
    /// # Errors
    /// [`TransportError::InvalidGroup`] for a list that is empty, repeats a rank, lacks this one or has one that the
    /// world has not; the first failure of any rank.
    pub fn group(&self, members: &[Rank]) -> Result<Group, TransportError> {
        let rank = self.rank();
        check_members(rank, members, self.size()).map_err(|cause| TransportError::InvalidGroup {
            rank,
            members: members.to_vec(),
            cause,
        })?;
        let mut instances = lock(&self.instances);
        let instance = instances.entry(members.to_vec()).or_default();
        let request = Request::Group { members: members.to_vec(), instance: *instance };
        // Counted even if the answer is lost: the hub gives each member each memory once.
        *instance += 1;
        let (reply, descriptor) = self.membership.ask(request, None)?;
        let Reply::Group = reply else {
            return Err(unexpected("making a group"));
        };
        let descriptor = descriptor.ok_or_else(|| TransportError::no_descriptor("making a group"))?;
        let position = members.iter().take_while(|&&member| member != rank).count();
        let mailboxes = Mailboxes::from_fd(descriptor.as_fd(), members.len(), position)?;
        Ok(Group::new(members.to_vec(), position, Arc::clone(&self.membership), mailboxes))
    }

    /// The group of all ranks, in order.
    ///
    /// # Errors
    /// As [`group`](Self::group).
    pub fn everyone(&self) -> Result<Group, TransportError> {
        let members: Vec<Rank> = (0..self.size()).map(|rank| Rank(rank as u32)).collect();
        self.group(&members)
    }

    /// Makes storages of this rank known under their names, in place of earlier ones of the same names.
    /// Others find them once they know that this call has returned, for example after a barrier.
    ///
    /// Returns a number for each: later publications have greater ones, and none of this rank's
    /// publications by another call lies between them.
    ///
    /// # Errors
    /// The first failure of any rank.
    pub fn publish(&self, storages: &[(&str, &SharedMemory)]) -> Result<Vec<u64>, TransportError> {
        let _one_call_at_a_time = lock(&self.publishing);
        let mut generations = Vec::with_capacity(storages.len());
        for (name, memory) in storages {
            let request = Request::Publish { name: (*name).to_owned() };
            let (Reply::Published { generation }, _) = self.membership.ask(request, Some(memory.fd()))?
            else {
                return Err(unexpected("publishing a storage"));
            };
            generations.push(generation);
        }
        Ok(generations)
    }

    /// Makes storages of this rank unknown again, known or not. Their memory is freed once this rank and all
    /// that have mapped it let go of it.
    ///
    /// # Errors
    /// The first failure of any rank.
    pub fn withdraw(&self, names: &[&str]) -> Result<(), TransportError> {
        for name in names {
            let request = Request::Withdraw { name: (*name).to_owned() };
            let (Reply::Withdrawn, _) = self.membership.ask(request, None)? else {
                return Err(unexpected("withdrawing a storage"));
            };
        }
        Ok(())
    }

    /// Maps a storage that a rank has published. To read it, see [`PeerMemory::view`].
    ///
    /// # Errors
    /// [`TransportError::StorageUnknown`] if it has not; the first failure of any rank.
    pub fn map(&self, rank: Rank, name: &str) -> Result<PeerMemory, TransportError> {
        self.map_published(rank, name).map(|(_, memory)| memory)
    }

    /// As [`map`](Self::map), with the number that [`publish`](Self::publish) returned.
    pub(crate) fn map_published(&self, rank: Rank, name: &str) -> Result<(u64, PeerMemory), TransportError> {
        let request = Request::Find { rank, name: name.to_owned() };
        let (reply, descriptor) = self.membership.ask(request, None)?;
        let Reply::Found { generation } = reply else {
            return Err(unexpected("mapping a storage"));
        };
        let doing = || format!("mapping storage {name} of rank {rank}");
        let descriptor = descriptor.ok_or_else(|| TransportError::no_descriptor(&doing()))?;
        Ok((generation, PeerMemory::from_fd(descriptor.as_fd())?))
    }

    /// Reports that this rank has failed. Every waiting or later call of every rank returns
    /// `PeerFailed` with this rank and cause, unless another failure was first. Returns the first.
    pub fn fail(&self, cause: impl Into<String>) -> TransportError {
        self.membership.fail(TransportError::PeerFailed { rank: self.rank(), cause: shortened(cause.into()) })
    }

    /// The first failure of any rank, if there was one.
    #[must_use]
    pub fn failure(&self) -> Option<TransportError> {
        self.membership.failure()
    }

    /// Leaves: this rank has done its part. It does not wait for others; a rank that still waits for this one
    /// gets an error.
    ///
    /// # Errors
    /// [`TransportError::System`] if the launcher is gone.
    pub fn leave(mut self) -> Result<(), TransportError> {
        self.left = true;
        self.membership.leave()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        let cause =
            if std::thread::panicking() { "panicked" } else { "gave up its world without leaving it" };
        self.fail(cause);
    }
}

fn unexpected(doing: &str) -> TransportError {
    TransportError::Protocol { doing: doing.to_owned(), found: "another reply".to_owned() }
}
