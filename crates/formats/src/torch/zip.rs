//! The entries of a zip archive, each checked to lie where it says and to overlap no other.
//!
//! ```text
//!   | header data.pkl | bytes | descriptor | header data/0 | bytes ... | directory | end |
//!                     ^ Entry { "x/data.pkl", span }                    entries never overlap, none reaches in here
//! ```
//!
//! Nothing is decompressed, and nothing is read but headers, so that lying sizes cost nothing.

use std::collections::HashSet;

use rawzip::{
    CompressionMethod, RECOMMENDED_BUFFER_SIZE, ReaderAt, ZipArchive, ZipFileHeaderRecord, ZipLocator,
};
use reshard_layout::Bytes;

use super::fault::TorchFault;
use crate::error::FormatError;
use crate::files::{Files, Span};
use crate::paths::stays_inside;

/// Entries that an archive may have.
pub(super) const ENTRIES_MAX: u64 = 1 << 20;
/// Room for the longest name and extra field of a header.
const LOCAL_BUFFER_BYTES: usize = 2 * (u16::MAX as usize);
/// The shortest descriptor that may follow an entry's bytes.
const DESCRIPTOR_BYTES_MIN: u64 = 12;

/// An entry.
pub(super) struct Entry {
    pub(super) name: String,
    /// Its bytes.
    pub(super) span: Span,
    pub(super) crc32: u32,
    /// In which way its bytes are not what was put into it.
    pub(super) packed: Option<&'static str>,
}

/// A stretch of a file, as a reader of its own.
struct Window<'a> {
    files: &'a Files,
    span: Span,
}

impl ReaderAt for Window<'_> {
    fn read_at(&self, into: &mut [u8], offset: u64) -> std::io::Result<usize> {
        let rest = self.span.length.0.saturating_sub(offset);
        let count = usize::try_from(rest).unwrap_or(usize::MAX).min(into.len());
        if count > 0 {
            let from = self.span.offset + Bytes(offset);
            self.files.read_at(self.span.file, from, &mut into[..count]).map_err(std::io::Error::other)?;
        }
        Ok(count)
    }
}

/// What an archive says about an entry, and the stretch of it that the entry takes up.
struct Found {
    entry: Entry,
    begin: u64,
    end: u64,
}

/// All entries of the archive that fills `span`.
pub(super) fn entries(files: &Files, span: Span) -> Result<Vec<Entry>, FormatError> {
    let path = files.path(span.file);
    let fail = |fault: TorchFault| FormatError::Torch { path: path.to_owned(), fault };
    let broken = |error: rawzip::Error| fail(TorchFault::Zip { cause: error.to_string() });
    let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
    let archive = ZipLocator::new()
        .locate_in_reader(Window { files, span }, &mut buffer, span.length.0)
        .map_err(|(_, error)| broken(error))?;
    let bytes = span.length.0.saturating_sub(archive.end_offset());
    if bytes > 0 {
        return Err(fail(TorchFault::Trailing { bytes }));
    }
    let directory = archive.directory_offset();
    let mut local_buffer = vec![0; LOCAL_BUFFER_BYTES];
    let mut found: Vec<Found> = Vec::new();
    let mut records = archive.entries(&mut buffer);
    while let Some(record) = records.next_entry().map_err(broken)? {
        if found.len() as u64 == ENTRIES_MAX {
            return Err(fail(TorchFault::Limit { what: "zip entries", max: ENTRIES_MAX }));
        }
        found.push(check(&archive, &record, &mut local_buffer, directory).map_err(fail)?);
    }
    if found.len() as u64 != archive.entries_hint() {
        let cause = format!("{} entries where the archive says {}", found.len(), archive.entries_hint());
        return Err(fail(TorchFault::Zip { cause }));
    }
    apart(&mut found).map_err(fail)?;
    Ok(found.into_iter().map(|found| found.entry).collect())
}

fn check(
    archive: &ZipArchive<Window<'_>>,
    record: &ZipFileHeaderRecord<'_>,
    buffer: &mut [u8],
    directory: u64,
) -> Result<Found, TorchFault> {
    let raw = record.file_path();
    let name = String::from_utf8_lossy(raw.as_bytes()).into_owned();
    let wrong = |what: &'static str| TorchFault::Entry { name: name.clone(), what };
    if name.as_bytes() != raw.as_bytes() || !stays_inside(&name) || name.contains('\\') {
        return Err(wrong("has a name that is no plain path"));
    }
    let length = record.compressed_size_hint();
    let packed = packed(record);
    if packed.is_none() && record.uncompressed_size_hint() != length {
        return Err(wrong("is stored as it is, but with two lengths"));
    }
    let broken = |error: rawzip::Error| TorchFault::Zip { cause: format!("entry {name:?}: {error}") };
    let body = archive.get_entry(record.wayfinder()).map_err(broken)?;
    let local = body.local_header(buffer).map_err(broken)?;
    if local.file_path().as_bytes() != raw.as_bytes() {
        return Err(wrong("has another name in its own header"));
    }
    let has_descriptor = local.flags().has_data_descriptor();
    if !has_descriptor && local.compressed_size_hint() != length {
        return Err(wrong("has another length in its own header"));
    }
    let (begin, end) = body.compressed_data_range();
    let descriptor = if has_descriptor && length > 0 { DESCRIPTOR_BYTES_MIN } else { 0 };
    match end.checked_add(descriptor) {
        Some(end) if end <= directory => {
            let window = archive.get_ref().span;
            let span =
                Span { file: window.file, offset: window.offset + Bytes(begin), length: Bytes(length) };
            let entry = Entry { name, span, crc32: record.crc32(), packed };
            Ok(Found { entry, begin: record.local_header_offset(), end })
        }
        _ => Err(wrong("ends beyond the entries of the archive")),
    }
}

fn packed(record: &ZipFileHeaderRecord<'_>) -> Option<&'static str> {
    let flags = record.flags();
    if flags.is_encrypted() || flags.has_strong_encryption() || flags.is_masked() {
        return Some("encrypted");
    }
    (record.compression_method() != CompressionMethod::STORE).then_some("compressed")
}

/// Checks that no two entries share bytes or a name.
fn apart(found: &mut [Found]) -> Result<(), TorchFault> {
    found.sort_by_key(|found| found.begin);
    for pair in found.windows(2) {
        if pair[1].begin < pair[0].end {
            let name = pair[1].entry.name.clone();
            return Err(TorchFault::Entry { name, what: "shares bytes with the one before it" });
        }
    }
    let mut names = HashSet::new();
    for found in found.iter() {
        if !names.insert(found.entry.name.as_str()) {
            return Err(TorchFault::Entry { name: found.entry.name.clone(), what: "is there twice" });
        }
    }
    Ok(())
}
