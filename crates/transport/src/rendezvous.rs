//! How a rank finds its world: a socket in the abstract namespace, by name. Nothing on disk.
//!
//! ```text
//!   "reshard-4711-9f3c…" ── connect ──► hub ── Welcome + control page ──► Membership
//!                                        └── closed socket = the launcher is gone
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use reshard_layout::Rank;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
};

use crate::control::{Control, RankState};
use crate::error::TransportError;
use crate::message::{Received, Reply, Request, receive, send};
use crate::park;
use crate::registry::Registry;

/// Locks even if a thread panicked while it held the lock: every state under these locks is whole at all times.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A packet socket, and the address of a name in the abstract namespace.
pub(crate) fn socket_and_address(name: &str) -> Result<(OwnedFd, SocketAddrUnix), TransportError> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|e| TransportError::system("open a socket", e))?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())
        .map_err(|e| TransportError::NoRendezvous { name: name.to_owned(), cause: e.to_string() })?;
    Ok((socket, address))
}

/// How a rank reaches the registry of its world.
#[derive(Debug)]
enum Link {
    /// In the launcher's process; one request at a time.
    Socket(OwnedFd, Mutex<()>),
    /// In this process, shared with the other ranks.
    Threads(Arc<Mutex<Registry>>),
}

/// Tells a world from every other that this process takes part in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorldId {
    /// By its rendezvous.
    Named(String),
    /// Of threads of this process, by number.
    Threads(u64),
}

impl WorldId {
    /// That of a new world of threads.
    pub(crate) fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self::Threads(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A rank's place in its world, shared by the world and its groups.
#[derive(Debug)]
pub(crate) struct Membership {
    world: WorldId,
    rank: Rank,
    control: Control,
    link: Link,
    timeout: Duration,
}

impl Membership {
    /// Joins by name, and waits until every rank has.
    pub(crate) fn join(name: &str, rank: Rank, timeout: Duration) -> Result<Self, TransportError> {
        let (socket, address) = socket_and_address(name)?;
        connect(&socket, &address)
            .map_err(|e| TransportError::NoRendezvous { name: name.to_owned(), cause: e.to_string() })?;
        let (reply, descriptor) = ask(socket.as_fd(), rank, &Request::Join { rank }, None)?;
        let (Reply::Welcome { size }, Some(descriptor)) = (reply, descriptor) else {
            return Err(TransportError::Protocol {
                doing: "joining".to_owned(),
                found: "no welcome".to_owned(),
            });
        };
        let control = Control::from_fd(descriptor.as_fd(), size)?;
        let world = WorldId::Named(name.to_owned());
        let membership = Self { world, rank, control, link: Link::Socket(socket, Mutex::new(())), timeout };
        membership.wait_for_all()?;
        Ok(membership)
    }

    /// Joins a registry of this process. Does not wait.
    pub(crate) fn join_threads(
        registry: &Arc<Mutex<Registry>>,
        world: &WorldId,
        rank: Rank,
        timeout: Duration,
    ) -> Result<Self, TransportError> {
        let link = Link::Threads(Arc::clone(registry));
        let (reply, descriptor) = link.ask(rank, Request::Join { rank }, None)?;
        let (Reply::Welcome { size }, Some(descriptor)) = (reply, descriptor) else {
            return Err(TransportError::Protocol {
                doing: "joining".to_owned(),
                found: "no welcome".to_owned(),
            });
        };
        let control = Control::from_fd(descriptor.as_fd(), size)?;
        Ok(Self { world: world.clone(), rank, control, link, timeout })
    }

    pub(crate) fn world(&self) -> WorldId {
        self.world.clone()
    }

    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    pub(crate) fn size(&self) -> usize {
        self.control.size()
    }

    pub(crate) fn failure(&self) -> Option<TransportError> {
        self.control.failure()
    }

    /// The world's failure as an error, where there is one.
    pub(crate) fn check(&self) -> Result<(), TransportError> {
        self.failure().map_or(Ok(()), Err)
    }

    /// One request; a refusal, and a failure of the world, is an error.
    pub(crate) fn ask(
        &self,
        request: Request,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(Reply, Option<OwnedFd>), TransportError> {
        self.check()?;
        // A hub that is gone may have recorded a failure first.
        self.link.ask(self.rank, request, descriptor).map_err(|error| self.failure().unwrap_or(error))
    }

    /// Makes an error every rank's, unless there was one before; returns the first.
    pub(crate) fn fail(&self, error: TransportError) -> TransportError {
        match self.link.ask(self.rank, Request::Fail { error }, None) {
            Ok((Reply::Failed { error }, _)) => error,
            Ok((reply, _)) => {
                TransportError::Protocol { doing: "failing".to_owned(), found: format!("{reply:?}") }
            }
            Err(error) => self.failure().unwrap_or(error),
        }
    }

    /// Says goodbye; the closing of the socket is then no failure.
    pub(crate) fn leave(&self) -> Result<(), TransportError> {
        match &self.link {
            Link::Socket(socket, _) => send(socket.as_fd(), &Request::Goodbye, None, SendFlags::empty()),
            Link::Threads(registry) => {
                let _no_reply = lock(registry).serve(self.rank, Request::Goodbye, None);
                Ok(())
            }
        }
    }

    /// Parks until `done` holds of the word.
    ///
    /// `late` lists the ranks that are waited for and `call` names the wait, for the error. Completion is looked
    /// at after failure, so that a wait that did complete is never reported as failed.
    pub(crate) fn wait(
        &self,
        word: &AtomicU32,
        done: impl Fn(u32) -> bool,
        late: impl Fn() -> Vec<Rank>,
        call: &str,
    ) -> Result<(), TransportError> {
        let start = Instant::now();
        let mut looked = start;
        loop {
            let failure = self.failure();
            let value = word.load(Ordering::Acquire);
            if done(value) {
                return Ok(());
            }
            if let Some(failure) = failure {
                return Err(failure);
            }
            if looked.elapsed() >= park::SLICE {
                looked = Instant::now();
                self.look_around(start, &late, call)?;
            }
            park::sleep(word, value);
        }
    }

    /// What a waiter does between two slices: is the launcher there, did a rank leave, is it too late?
    fn look_around(
        &self,
        start: Instant,
        late: &impl Fn() -> Vec<Rank>,
        call: &str,
    ) -> Result<(), TransportError> {
        if self.link.is_closed() {
            return Err(self.failure().unwrap_or(TransportError::LauncherGone { rank: self.rank }));
        }
        // States before lateness: a rank that arrived and then left is seen as left, and as not late.
        let states: Vec<bool> =
            (0..self.size()).map(|rank| self.control.state(Rank(rank as u32)) == RankState::Left).collect();
        let late = late();
        if let Some(&rank) = late.iter().find(|rank| states[rank.index()]) {
            let cause = format!("left the world while rank {} waited for it in {call}", self.rank);
            return Err(self.fail(TransportError::PeerFailed { rank, cause }));
        }
        if start.elapsed() >= self.timeout {
            let waiting_for = crate::error::shortened(format!("ranks {:?} in {call}", Numbers(&late)));
            let seconds = self.timeout.as_secs();
            return Err(self.fail(TransportError::Timeout { rank: self.rank, waiting_for, seconds }));
        }
        Ok(())
    }

    fn wait_for_all(&self) -> Result<(), TransportError> {
        let size = self.size();
        let late = || {
            (0..size)
                .map(|rank| Rank(rank as u32))
                .filter(|&rank| self.control.state(rank) == RankState::Absent)
                .collect()
        };
        self.wait(self.control.joined(), |joined| joined as usize >= size, late, "joining")
    }
}

/// Ranks as plain numbers.
struct Numbers<'a>(&'a [Rank]);

impl std::fmt::Debug for Numbers<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|rank| rank.0)).finish()
    }
}

impl Link {
    fn ask(
        &self,
        rank: Rank,
        request: Request,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(Reply, Option<OwnedFd>), TransportError> {
        match self {
            Self::Socket(socket, asking) => {
                let _one_at_a_time = lock(asking);
                ask(socket.as_fd(), rank, &request, descriptor)
            }
            Self::Threads(registry) => {
                let duplicate = |e| TransportError::system("duplicate a descriptor", e);
                let descriptor = descriptor
                    .map(|descriptor| descriptor.try_clone_to_owned())
                    .transpose()
                    .map_err(duplicate)?;
                let answer = lock(registry).serve(rank, request, descriptor);
                let (reply, descriptor) = answer.ok_or_else(|| no_answer(rank))?;
                let descriptor = descriptor.map(|it| it.try_clone()).transpose().map_err(duplicate)?;
                refused(reply).map(|reply| (reply, descriptor))
            }
        }
    }

    fn is_closed(&self) -> bool {
        let Self::Socket(socket, _) = self else {
            return false;
        };
        let mut waited = [PollFd::new(socket, PollFlags::empty())];
        let polled = poll(&mut waited, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        polled.is_ok() && waited[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}

fn no_answer(rank: Rank) -> TransportError {
    TransportError::Protocol { doing: format!("asking as rank {rank}"), found: "no answer".to_owned() }
}

fn refused(reply: Reply) -> Result<Reply, TransportError> {
    match reply {
        Reply::Refused { error } => Err(error),
        reply => Ok(reply),
    }
}

/// One request over a socket. The hub answers at once, so this waits without a limit of its own.
fn ask(
    socket: BorrowedFd<'_>,
    rank: Rank,
    request: &Request,
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(Reply, Option<OwnedFd>), TransportError> {
    let sent = send(socket, request, descriptor, SendFlags::empty());
    // A hub that refuses a process says so and closes, perhaps before the request was sent: read in any case.
    match (receive(socket, RecvFlags::empty()), sent) {
        (Received::Message(reply, descriptor), _) => refused(reply).map(|reply| (reply, descriptor)),
        (Received::Garbage(found), _) => {
            Err(TransportError::Protocol { doing: format!("asking as rank {rank}"), found })
        }
        (Received::Closed | Received::Nothing, _) => Err(TransportError::LauncherGone { rank }),
    }
}
