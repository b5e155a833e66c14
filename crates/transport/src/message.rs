//! What ranks and the hub say to each other: one packet a message, at most one descriptor with it.
//!
//! ```text
//!   rank ── Join{2} ─────────────► hub        rank ── Publish{"flat"} + fd ──► hub
//!        ◄─ Welcome{size: 4} + fd ─                ◄─ Published{generation} ──
//! ```
//!
//! Messages are rare (joining, groups, storages, failures) and small, so they are JSON; bulk data never goes here.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use reshard_layout::Rank;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::TransportError;

/// Longest packet, in bytes.
const PACKET_BYTES_MAX: usize = 1 << 17;

/// From a rank.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// First of all: which rank this is.
    Join { rank: Rank },
    /// The memory of a group: `instance` counts the groups of these members that the rank made before.
    Group { members: Vec<Rank>, instance: u32 },
    /// Makes a storage (the descriptor with this message) known to the others.
    Publish { name: String },
    /// Forgets a storage, so that its memory can be freed.
    Withdraw { name: String },
    /// Asks for a storage of a rank.
    Find { rank: Rank, name: String },
    /// Reports a failure.
    Fail { error: TransportError },
    /// The rank has done its work and leaves. No reply.
    Goodbye,
}

impl Request {
    /// What a rank does that sends it.
    pub(crate) fn doing(&self) -> String {
        match self {
            Self::Join { .. } => "joining".to_owned(),
            Self::Group { members, .. } => format!("making a group of {}", members.len()),
            Self::Publish { name } => format!("publishing storage {name}"),
            Self::Withdraw { name } => format!("withdrawing storage {name}"),
            Self::Find { rank, name } => format!("mapping storage {name} of rank {rank}"),
            Self::Fail { .. } => "reporting a failure".to_owned(),
            Self::Goodbye => "leaving".to_owned(),
        }
    }
}

/// From the hub.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// The control page comes with it.
    Welcome { size: usize },
    /// The group's memory comes with it.
    Group,
    /// How many storages were published before this one: tells two storages of one name apart.
    Published { generation: u64 },
    /// It is forgotten.
    Withdrawn,
    /// The storage comes with it.
    Found { generation: u64 },
    /// The world's first failure.
    Failed { error: TransportError },
    /// The request was refused.
    Refused { error: TransportError },
}

/// Sends one message.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    descriptor: Option<BorrowedFd<'_>>,
    flags: SendFlags,
) -> Result<(), TransportError> {
    let packet = serde_json::to_vec(message).map_err(|e| TransportError::system("write a message", e))?;
    if packet.len() > PACKET_BYTES_MAX {
        return Err(TransportError::system("write a message", "it is too long"));
    }
    let descriptors = descriptor.map(|descriptor| [descriptor]);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if let Some(descriptors) = &descriptors {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = flags | SendFlags::NOSIGNAL;
    loop {
        match sendmsg(socket, &[IoSlice::new(&packet)], &mut ancillary, flags) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(TransportError::system("send a message", error)),
        }
    }
}

/// What a socket gave.
pub(crate) enum Received<M> {
    /// One message, and the descriptor that came with it.
    Message(M, Option<OwnedFd>),
    /// The other side is gone.
    Closed,
    /// Nothing yet (only with [`RecvFlags::DONTWAIT`]).
    Nothing,
    /// A packet that is no message.
    Garbage(String),
}

/// Receives one message.
pub(crate) fn receive<M: DeserializeOwned>(socket: impl AsFd, flags: RecvFlags) -> Received<M> {
    let mut packet = vec![0; PACKET_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut packet)], &mut ancillary, flags) {
            Ok(received) => break received,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return Received::Nothing,
            // A reset means that the other side went away with messages unread.
            Err(_) => return Received::Closed,
        }
    };
    if received.bytes == 0 {
        return Received::Closed;
    }
    let mut descriptor = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            descriptor = descriptors.last().or(descriptor);
        }
    }
    match serde_json::from_slice(&packet[..received.bytes]) {
        Ok(message) => Received::Message(message, descriptor),
        Err(error) => Received::Garbage(error.to_string()),
    }
}
