//! A checkpoint written in another layout, streaming.
//!
//! ```text
//!   Checkpoint (layouts of files) ─┐
//!                                  ├─ plan, verify ──► summary        run: OutputFolder ◄── windows ◄── source files
//!   Output (layouts of files)   ───┘
//! ```

use std::path::Path;
use std::time::Instant;

use indexmap::IndexMap;
use reshard_layout::{Bytes, StorageId};
use reshard_plan::{Options, Plan, Policy, verify};
use reshard_transport::Assembly;

use crate::checkpoint::{Checkpoint, Part};
use crate::error::FormatError;
use crate::files::{FileId, Files};
use crate::kept::Kept;
use crate::output::{Output, TargetFile};
use crate::replicas::compare_replicas;
use crate::write::{
    Content, Crew, Filling, OutputFolder, PartContent, Progress, Replicas, Report, Sheet, Stretch,
    WriteFault, WriteOptions, check_apart, check_paths, check_space, sheets, write,
};

/// What a conversion will read and write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Files that are written, with those that are copied.
    pub files: usize,
    /// Bytes of all files that are written.
    pub bytes_written: Bytes,
    /// Each tensor that is kept of the parameters.
    pub parts: IndexMap<Kept, PartSummary>,
}

impl Summary {
    /// Bytes of elements that are read, each once, without files that are copied.
    #[must_use]
    pub fn bytes_read(&self) -> Bytes {
        self.parts.values().map(|part| part.bytes_read).sum()
    }
}

/// What a conversion does for one kept tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartSummary {
    /// Parameters.
    pub parameters: usize,
    /// Boxes that are copied.
    pub copies: u64,
    /// Bytes of elements that are read, each once.
    pub bytes_read: Bytes,
    /// Bytes of elements that are written.
    pub bytes_written: Bytes,
}

/// A checkpoint, an output, and the plans between them.
#[derive(Debug)]
pub struct Conversion {
    source: Checkpoint,
    output: Output,
    plans: IndexMap<Kept, Plan>,
    /// The files that are taken over, as files to read and as files to write.
    copied: (Files, Vec<TargetFile>),
}

impl Conversion {
    /// Plans each part of the output from the source's part of the same [`Kept`], and proves the plans. Values are
    /// cast where the output has another float type.
    ///
    /// # Errors
    /// [`WriteFault::KeptMissing`]; paths, spans and known bytes that contradict each other; errors of planning;
    /// [`FormatError::Io`] for a file to be copied that is not there.
    pub fn new(source: Checkpoint, output: Output) -> Result<Self, FormatError> {
        let mut plans = IndexMap::new();
        for (kept, part) in &output.parts {
            let Some(held) = source.parts.get(kept) else {
                let fault = WriteFault::KeptMissing { kept: kept.clone() };
                return Err(FormatError::Write { path: source.root.clone(), fault });
            };
            let plan = Options::new(Policy::Lowest).cast(true).plan(&held.layout, &part.layout)?;
            verify(&plan, &held.layout, &part.layout)?;
            plans.insert(kept.clone(), plan);
        }
        let mut files = Files::default();
        let mut copies = Vec::new();
        for (from, to) in &output.copied {
            let file = files.add(from)?;
            let length = files.length(file).0;
            copies.push(TargetFile { path: to.clone(), length, known: Vec::new(), checksums: Vec::new() });
        }
        let paths = output.files.iter().chain(&copies).map(|file| file.path.as_path());
        check_paths(&source.root, paths)?;
        sheets(&source.root, &output.files, output.parts.values())?;
        Ok(Self { source, output, plans, copied: (files, copies) })
    }

    /// The checkpoint that is read.
    #[must_use]
    pub fn source(&self) -> &Checkpoint {
        &self.source
    }

    /// What will be written.
    #[must_use]
    pub fn output(&self) -> &Output {
        &self.output
    }

    /// What will be read and written.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let parts = self.plans.iter().map(|(kept, plan)| {
            let mut part = PartSummary { parameters: plan.parameters.len(), ..PartSummary::default() };
            part.copies = plan.copies.len() as u64;
            for copy in &plan.copies {
                let (source, target) = plan.types(copy);
                part.bytes_read += copy.elements().bytes(source);
                part.bytes_written += copy.elements().bytes(target);
            }
            (kept.clone(), part)
        });
        Summary {
            files: self.output.files.len() + self.copied.1.len(),
            bytes_written: self.bytes_written(),
            parts: parts.collect(),
        }
    }

    fn bytes_written(&self) -> Bytes {
        let files = self.output.files.iter().chain(&self.copied.1);
        Bytes(files.fold(0u64, |sum, file| sum.saturating_add(file.length)))
    }

    /// Says whether [`run`](Self::run) could begin: what it checks before it writes. Replicas are not compared.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn check(&self, folder: &Path, options: &WriteOptions) -> Result<(), FormatError> {
        Crew::new(folder, options.memory, options.threads)?;
        self.check_inputs(folder)?;
        let parent = OutputFolder::check(folder, options.force)?;
        check_space(&parent, self.bytes_written())
    }

    /// Writes the output as `folder`, whole or not at all.
    ///
    /// # Errors
    /// As [`OutputFolder::create`] and [`OutputFolder::commit`]; [`WriteFault::InsideInput`],
    /// [`WriteFault::HoldsInput`], [`WriteFault::SpaceShort`], [`WriteFault::MemoryTooSmall`];
    /// [`FormatError::Replicas`]; [`FormatError::Io`] naming the file. Then `folder` is what it was, and nothing is
    /// left beside it.
    pub fn run(
        &self,
        folder: &Path,
        options: &WriteOptions,
        progress: &dyn Progress,
    ) -> Result<Report, FormatError> {
        let begin = Instant::now();
        let crew = Crew::new(folder, options.memory, options.threads)?;
        self.check_inputs(folder)?;
        let output = OutputFolder::create(folder, options.force)?;
        check_space(output.path(), self.bytes_written())?;
        let mut bytes_read = self.compare_replicas(options, crew)?;
        bytes_read += self.write(output.path(), crew, options.sync, progress)?;
        output.commit(options.sync)?;
        Ok(Report {
            bytes_read,
            bytes_written: self.bytes_written(),
            files: self.output.files.len() + self.copied.1.len(),
            seconds: begin.elapsed().as_secs_f64(),
        })
    }

    /// The output must neither lie in what is read nor hold any of it.
    fn check_inputs(&self, folder: &Path) -> Result<(), FormatError> {
        check_apart(folder, &self.source.root)?;
        for files in [&self.source.files, &self.copied.0] {
            for file in (0u32..).map(FileId).take(files.len()) {
                check_apart(folder, files.path(file))?;
            }
        }
        Ok(())
    }

    fn compare_replicas(&self, options: &WriteOptions, crew: Crew) -> Result<Bytes, FormatError> {
        let mut bytes_read = Bytes(0);
        if options.replicas == Replicas::Compare {
            for (kept, part) in &self.output.parts {
                let held = &self.source.parts[kept];
                bytes_read += compare_replicas(&self.source, kept, held, &part.layout, crew)?;
            }
        }
        Ok(bytes_read)
    }

    /// Writes all files into a folder and tells how many bytes were read.
    fn write(
        &self,
        folder: &Path,
        crew: Crew,
        sync: bool,
        progress: &dyn Progress,
    ) -> Result<Bytes, FormatError> {
        let assemblies: Vec<Assembly<'_>> =
            self.plans.values().map(Assembly::new).collect::<Result<_, _>>()?;
        let readers: Vec<_> =
            self.plans.keys().map(|kept| self.source.reader(&self.source.parts[kept])).collect();
        let parts: Vec<&Part> = self.output.parts.values().collect();
        let filled: Vec<PartContent<'_>> = parts
            .iter()
            .zip(&assemblies)
            .zip(&readers)
            .map(|((part, assembly), sources)| PartContent::new(&Filling { part, assembly, sources }))
            .collect();
        let (files, targets) = &self.copied;
        let copied = CopiedContent { files };
        let mut contents: Vec<&dyn Content> = filled.iter().map(|content| content as &dyn Content).collect();
        let mut all = sheets(folder, &self.output.files, parts.iter().copied())?;
        for (file, target) in (0u32..).zip(targets) {
            let (range, storage) = (0..target.length, StorageId(file));
            let stretch = Stretch { range, content: contents.len(), storage };
            all.push(Sheet::new(folder, target, vec![stretch])?);
        }
        contents.push(&copied);
        write(folder, &all, &contents, crew, sync, progress)?;
        let copied_bytes = Bytes(targets.iter().map(|target| target.length).sum());
        Ok(copied_bytes + filled.iter().map(PartContent::bytes_read).sum())
    }
}

/// Files that are taken over: storage `i` is file `i`.
struct CopiedContent<'a> {
    files: &'a Files,
}

impl Content for CopiedContent<'_> {
    fn fill(
        &self,
        storage: StorageId,
        window: std::ops::Range<u64>,
        into: &mut [u8],
        _scratch: &mut [u8],
    ) -> Result<(), FormatError> {
        self.files.read_at(FileId(storage.0), Bytes(window.start), into)
    }

    fn is_dense(&self, _storage: StorageId) -> bool {
        true
    }
}
