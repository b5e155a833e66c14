//! One rank's process: dies with the launcher, is reaped when dropped.
//!
//! ```text
//!   fork ──► "kill me when my parent dies" ──► is my parent still the launcher? ──► exec
//!                                               no: it died in between; exit
//! ```
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};

use reshard_layout::Rank;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, getppid, pidfd_open, set_parent_process_death_signal,
};

use crate::error::TransportError;

/// A running or ended rank process.
#[derive(Debug)]
pub(crate) struct RankProcess {
    rank: Rank,
    child: Child,
    /// Readable when the process has ended.
    descriptor: OwnedFd,
    status: Option<ExitStatus>,
}

impl RankProcess {
    /// Starts a process that the kernel kills when the calling thread ends.
    pub(crate) fn spawn(rank: Rank, command: &mut Command) -> Result<Self, TransportError> {
        let launcher = getpid();
        let bind_to_launcher = move || -> io::Result<()> {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            if getppid() == Some(launcher) {
                Ok(())
            } else {
                Err(io::Error::from_raw_os_error(rustix::io::Errno::SRCH.raw_os_error()))
            }
        };
        // SAFETY: between fork and exec the closure makes two system calls and allocates nothing.
        unsafe { command.pre_exec(bind_to_launcher) };
        let start = |e: io::Error| TransportError::NotStarted { rank, cause: e.to_string() };
        let mut child = command.spawn().map_err(start)?;
        let descriptor = Pid::from_raw(child.id().cast_signed())
            .ok_or(rustix::io::Errno::SRCH)
            .and_then(|id| pidfd_open(id, PidfdFlags::empty()));
        match descriptor {
            Ok(descriptor) => Ok(Self { rank, child, descriptor, status: None }),
            Err(error) => {
                let _ended = child.kill().and_then(|()| child.wait());
                Err(start(error.into()))
            }
        }
    }

    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Readable once the process has ended.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// How it ended, if it has been reaped.
    pub(crate) fn status(&self) -> Option<ExitStatus> {
        self.status
    }

    /// Reaps it if it has ended.
    pub(crate) fn try_reap(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Kills it unless it has ended.
    pub(crate) fn kill(&mut self) {
        if self.status.is_none() {
            // Fails only for a process that has ended.
            let _killed = self.child.kill();
        }
    }

    /// Waits for its end.
    pub(crate) fn reap(&mut self) {
        if self.status.is_none() {
            self.status = self.child.wait().ok();
        }
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        self.kill();
        self.reap();
    }
}
