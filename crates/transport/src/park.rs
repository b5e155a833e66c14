//! Waiting on a shared word without spinning.
//!
//! ```text
//!   waiter: load v, done? ── no ──► sleep while the word is v, at most one slice ──► again
//!   waker:  store, wake all
//! ```
//!
//! The kernel compares the word with `v` and goes to sleep in one step, so a store between the waiter's load and
//! its sleep is never missed. The slice bounds how long a waiter can miss what is not in the word: a failure, or
//! a closed socket.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::thread::futex;

/// The longest sleep between two looks at the failure record and the socket.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// Longer than anybody waits: what the system and the clock can still add up.
pub(crate) const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Wakes everyone who sleeps on the word, in every process.
pub(crate) fn wake_all(word: &AtomicU32) {
    // The call can only fail for an address that is not mapped, and a reference is mapped.
    let _woken = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

/// Sleeps while the word is `value`, at most one slice. May return early for no reason.
pub(crate) fn sleep(word: &AtomicU32, value: u32) {
    let slice = futex::Timespec { tv_sec: 0, tv_nsec: i64::from(SLICE.subsec_nanos()) };
    // Woken, changed, interrupted and timed out all mean the same to the caller: look again.
    let _reason = futex::wait(word, futex::Flags::empty(), value, Some(&slice));
}
