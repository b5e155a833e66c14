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
use rustix::io::Errno;
use rustix::net::sockopt::{self, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect,
    shutdown, socket_with,
};

use crate::control::{Control, RankState};
use crate::error::{Numbers, TransportError, shortened};
use crate::message::{Received, Reply, Request, receive, send};
use crate::park;
use crate::registry::Registry;

/// How long a rank that has an error waits for the launcher to take it.
const FAIL_WAIT: Duration = Duration::from_secs(1);

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
        // Connecting waits while the queue of those who wait to be let in is full.
        let timeout = timeout.min(park::LONGEST);
        let patience = Some(timeout.max(Duration::from_millis(1)));
        set_socket_timeout(&socket, sockopt::Timeout::Send, patience)
            .map_err(|e| TransportError::system("limit the waits of a socket", e))?;
        connect(&socket, &address).map_err(|error| match error {
            Errno::AGAIN => late(rank, timeout, "joining"),
            error => TransportError::NoRendezvous { name: name.to_owned(), cause: error.to_string() },
        })?;
        let (reply, descriptor) = ask(socket.as_fd(), rank, &Request::Join { rank }, None, timeout)?;
        let (size, descriptor) = welcomed(&reply, descriptor)?;
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
        let (reply, descriptor) = link.ask(rank, Request::Join { rank }, None, timeout)?;
        let (size, descriptor) = welcomed(&reply, descriptor)?;
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
        let answer = self.link.ask(self.rank, request, descriptor, self.timeout);
        answer.map_err(|error| self.failure().unwrap_or(error))
    }

    /// Makes an error every rank's, unless there was one before; returns the first.
    ///
    /// A launcher that does not answer soon does not keep this rank from its own error.
    pub(crate) fn fail(&self, error: TransportError) -> TransportError {
        let request = Request::Fail { error: error.clone() };
        match self.link.ask(self.rank, request, None, self.timeout.min(FAIL_WAIT)) {
            Ok((Reply::Failed { error }, _)) => error,
            Ok((reply, _)) => {
                TransportError::Protocol { doing: "failing".to_owned(), found: format!("{reply:?}") }
            }
            Err(TransportError::Timeout { .. }) => self.failure().unwrap_or(error),
            Err(gone) => self.failure().unwrap_or(gone),
        }
    }

    /// Says goodbye; the closing of the socket is then no failure.
    pub(crate) fn leave(&self) -> Result<(), TransportError> {
        match &self.link {
            Link::Socket(socket, _) => send(socket.as_fd(), &Request::Goodbye, None, SendFlags::DONTWAIT),
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
            let waiting_for = shortened(format!("ranks {} in {call}", Numbers(&late)));
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

impl Link {
    fn ask(
        &self,
        rank: Rank,
        request: Request,
        descriptor: Option<BorrowedFd<'_>>,
        timeout: Duration,
    ) -> Result<(Reply, Option<OwnedFd>), TransportError> {
        match self {
            Self::Socket(socket, asking) => {
                let _one_at_a_time = lock(asking);
                ask(socket.as_fd(), rank, &request, descriptor, timeout)
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

/// What the hub says to a rank that has joined.
fn welcomed(reply: &Reply, descriptor: Option<OwnedFd>) -> Result<(usize, OwnedFd), TransportError> {
    let Reply::Welcome { size } = *reply else {
        let (doing, found) = ("joining".to_owned(), "no welcome".to_owned());
        return Err(TransportError::Protocol { doing, found });
    };
    Ok((size, descriptor.ok_or_else(|| TransportError::no_descriptor("joining"))?))
}

/// The error of a rank that the hub keeps waiting.
fn late(rank: Rank, timeout: Duration, doing: &str) -> TransportError {
    let waiting_for = shortened(format!("the launcher in {doing}"));
    TransportError::Timeout { rank, waiting_for, seconds: timeout.as_secs() }
}

/// One request over a socket. The hub answers at once, unless it is stopped: then the socket is of no use any
/// more, since a late answer would be taken for that to another request.
fn ask(
    socket: BorrowedFd<'_>,
    rank: Rank,
    request: &Request,
    descriptor: Option<BorrowedFd<'_>>,
    timeout: Duration,
) -> Result<(Reply, Option<OwnedFd>), TransportError> {
    let sent = send(socket, request, descriptor, SendFlags::DONTWAIT);
    // A hub that refuses a process says so and closes, perhaps before the request was sent: read in any case.
    wait_readable(socket, if sent.is_ok() { timeout } else { Duration::ZERO });
    match (receive(socket, RecvFlags::DONTWAIT), sent) {
        (Received::Message(reply, descriptor), _) => refused(reply).map(|reply| (reply, descriptor)),
        (Received::Garbage(found), _) => {
            Err(TransportError::Protocol { doing: format!("asking as rank {rank}"), found })
        }
        (Received::Closed, _) => Err(TransportError::LauncherGone { rank }),
        (Received::Nothing, Err(error)) => Err(error),
        (Received::Nothing, Ok(())) => {
            // Fails only for a socket that is closed already.
            let _closed = shutdown(socket, Shutdown::Both);
            Err(late(rank, timeout, &request.doing()))
        }
    }
}

/// Parks until there is something to receive, or it is too late.
fn wait_readable(socket: BorrowedFd<'_>, timeout: Duration) {
    let end = Instant::now() + timeout;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            // Ready, late, or an error that receiving finds too.
            _ => return,
        }
    }
}
