//! Starts ranks as processes, holds their world together, and leaves nothing behind.
//!
//! ```text
//!   launcher process                         rank processes
//!   Launcher ──► supervisor thread ── spawn ──► 0  1  2 …   killed by the kernel if the launcher dies
//!                  │ polls: listener, sockets, pidfds
//!                  └─ socket closed without goodbye, or bad exit ──► first failure ──► grace ──► kill, reap
//! ```

use std::os::fd::OwnedFd;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use reshard_layout::Rank;
use rustix::event::{EventfdFlags, eventfd};

use crate::error::TransportError;
use crate::supervisor::Supervisor;
use crate::world::DEFAULT_TIMEOUT;

/// How long survivors of a failure may take to report and to exit before they are killed.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(2);

/// How long a launcher waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For the processes that it started to join. A failure of the world after that.
    pub join: Duration,
    /// For survivors of a failure to report and to exit. They are killed after that.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { join: DEFAULT_TIMEOUT, grace: DEFAULT_GRACE }
    }
}

/// How one rank's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The rank.
    pub rank: Rank,
    /// Its exit code or signal.
    pub status: ExitStatus,
}

/// How a world ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The processes that the launcher started, by rank.
    pub exits: Vec<Exit>,
    /// The first failure of any rank.
    pub failure: Option<TransportError>,
}

impl Outcome {
    /// The exits, if no rank failed.
    ///
    /// # Errors
    /// The first failure of any rank.
    pub fn into_result(self) -> Result<Vec<Exit>, TransportError> {
        self.failure.map_or(Ok(self.exits), Err)
    }
}

/// The holder of a world. When it goes, by [`wait`](Self::wait), by drop or by death, so do the processes
/// that it started.
#[derive(Debug)]
pub struct Launcher {
    name: String,
    process_ids: Vec<(Rank, u32)>,
    stop: Arc<AtomicBool>,
    bell: Arc<OwnedFd>,
    supervisor: Option<JoinHandle<Outcome>>,
}

impl Launcher {
    /// A world of `size` ranks, of which `commands` are started here, each with the environment variables that
    /// [`World::from_environment`](crate::World::from_environment) reads. Other processes of this user may
    /// join as the remaining ranks, by [`name`](Self::name).
    ///
    /// # Errors
    /// [`TransportError::RankOutOfRange`] and [`TransportError::RankTaken`] for ranks that cannot be,
    /// [`TransportError::NotStarted`] if a process cannot be started, and [`TransportError::System`] if a socket or
    /// memory cannot be made. None of the processes is then left.
    pub fn start(size: usize, commands: Vec<(Rank, Command)>) -> Result<Self, TransportError> {
        Self::start_within(size, commands, Limits::default())
    }

    /// As [`start`](Self::start), with other limits.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_within(
        size: usize,
        commands: Vec<(Rank, Command)>,
        limits: Limits,
    ) -> Result<Self, TransportError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| TransportError::system("make an event", e))?;
        let (bell, stop) = (Arc::new(bell), Arc::new(AtomicBool::new(false)));
        let mut supervisor = Supervisor::new(size, limits, Arc::clone(&bell), Arc::clone(&stop))?;
        let name = supervisor.name().to_owned();
        let (started, when_started) = mpsc::channel();
        // Children die with the thread that started them, so that thread is the one that supervises them.
        let thread = std::thread::Builder::new().name("reshard-launcher".to_owned());
        let supervisor = thread
            .spawn(move || {
                let spawned = supervisor.spawn(commands);
                let failed = spawned.is_err();
                let told = started.send(spawned);
                if failed || told.is_err() { supervisor.abort() } else { supervisor.run() }
            })
            .map_err(|e| TransportError::system("start a thread", e))?;
        let mut launcher = Self { name, process_ids: Vec::new(), stop, bell, supervisor: Some(supervisor) };
        launcher.process_ids =
            when_started.recv().map_err(|e| TransportError::system("start the ranks", e))??;
        Ok(launcher)
    }

    /// The name by which ranks join.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process ids of the ranks that were started here.
    #[must_use]
    pub fn process_ids(&self) -> &[(Rank, u32)] {
        &self.process_ids
    }

    /// Waits until every started process has ended and every other rank has left.
    ///
    /// After the first failure the survivors have a grace period; what still runs then, or is stopped, is killed.
    /// A started process that does not join in time is a failure. For ranks that were not started here a
    /// launcher waits without a limit; the ranks that wait for them time out.
    #[must_use]
    pub fn wait(mut self) -> Outcome {
        self.join()
    }

    fn join(&mut self) -> Outcome {
        let gone = || TransportError::system("supervise the ranks", "the thread panicked");
        match self.supervisor.take().map(JoinHandle::join) {
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) | None => Outcome { exits: Vec::new(), failure: Some(gone()) },
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        if self.supervisor.is_some() {
            self.stop.store(true, Ordering::Release);
            // The counter cannot be full: this is its only write.
            let _written = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
            let _outcome = self.join();
        }
    }
}
