//! Which run of which tensor-parallel shard lies where in a rank's flat tensors.
//!
//! ```text
//!  stages 1, 2: window r of a flat buffer        stage 3: slice r of every parameter, end to end
//!  |a a a|b b ; b b|c c c|0|                     |a a|b b b|c|  of W ranks, W found by
//!  rank 0       ^ rank 1                         sum of ceil(numel / W) = the length in the file
//! ```
//!
//! The order is that of `param_shapes`; what a file records of it besides is compared and not trusted.

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::ops::Range;

use indexmap::IndexMap;
use reshard_layout::{DType, Elements, volume};
use reshard_parallel::zero::{
    FlatGroup, FlatRules, Fragment, PartitionOver, SliceShard, round_robin, sub_groups,
};

use super::fault::ZeroFault;
use super::field::ELEMENTS_MAX;
use super::model_states::Shapes;
use super::optimizer_states::{FragmentAddress, OptimizerStates};

/// A run of a shard in a rank's flat tensor of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The parameter.
    pub parameter: String,
    /// Where the run begins in the flat tensor.
    pub offset: u64,
    /// Its elements in the row-major shard.
    pub run: Range<u64>,
}

/// What a rank holds of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The length of its flat tensors.
    pub length: u64,
    /// Their length where the padding at the end is left out.
    pub unpadded: u64,
    /// What lies in them, by address.
    pub held: Vec<Held>,
}

/// How a group of stages 1 and 2 was laid out, beside its shapes.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlatFacts {
    /// The group.
    pub(super) group: usize,
    /// The rank's place among those that share it.
    pub(super) rank: u64,
    /// How many share it.
    pub(super) ranks: NonZeroU64,
    /// The type of the model's weights.
    pub(super) dtype: DType,
    /// Whether the trainer dealt parameters out to ranks.
    pub(super) round_robin: bool,
}

/// A rank's window of a flat buffer, compared with what its file records.
pub(super) fn window(shapes: &Shapes, facts: FlatFacts, file: &OptimizerStates) -> Result<Share, ZeroFault> {
    let numels = numels(shapes)?;
    let none = Vec::new();
    let paddings = file.alignment_paddings.get(facts.group).unwrap_or(&none);
    let aligned = paddings.iter().any(|padding| *padding > 0);
    let rules = FlatRules::partitioned(facts.ranks, facts.dtype, aligned, false);
    let flat = FlatGroup::new(&numels, rules);
    for pair in flat.entries().windows(2) {
        let found = paddings.get(pair[0].parameter).copied().unwrap_or(0);
        let expected = pair[1].offset.0 - pair[0].offset.0 - pair[0].numel.0;
        if found != expected {
            let key = format!("param_alignment_paddings.{}.{}", facts.group, pair[0].parameter);
            let because = "parameters are aligned to 16 bytes";
            return Err(ZeroFault::Disagrees { key, expected, found, because });
        }
    }
    let fragments: Vec<Fragment> = flat.fragments(facts.rank).collect();
    if let Some(mappings) = &file.mappings {
        let recorded = mappings.get(facts.group).ok_or_else(|| ZeroFault::Missing {
            key: format!("optimizer_state_dict.param_slice_mappings.{}", facts.group),
        })?;
        let undealt = || FlatGroup::new(&before_dealing(&numels, facts.ranks), rules);
        // DeepSpeed 0.19.8 records the places as if it had not dealt, unless there is alignment padding.
        let is_known_defect = facts.round_robin
            && !aligned
            && difference(shapes, &undealt().fragments(facts.rank).collect::<Vec<_>>(), recorded).is_none();
        match difference(shapes, &fragments, recorded) {
            Some((parameter, recorded, computed)) if !is_known_defect => {
                let group = facts.group;
                return Err(ZeroFault::Mapping { group, parameter, recorded, computed });
            }
            _ => {}
        }
    }
    let length = flat.partition_length().0;
    Ok(Share { length, unpadded: length - flat.padding(facts.rank).0, held: held(shapes, &fragments) })
}

fn numels(shapes: &Shapes) -> Result<Vec<(usize, Elements)>, ZeroFault> {
    let numels: Vec<_> = shapes.values().map(|shape| volume(shape).unwrap_or(u64::MAX)).collect();
    let total = numels.iter().fold(0u64, |sum, numel| sum.saturating_add(*numel));
    if total > ELEMENTS_MAX {
        let key = "the number of elements of a group of param_shapes".to_owned();
        return Err(ZeroFault::TooLarge { key, found: total, limit: ELEMENTS_MAX });
    }
    Ok(numels.into_iter().map(Elements).enumerate().collect())
}

fn held(shapes: &Shapes, fragments: &[Fragment]) -> Vec<Held> {
    let of = |fragment: &Fragment| Held {
        parameter: name_of(shapes, fragment).to_owned(),
        offset: fragment.offset.0,
        run: fragment.first.0..fragment.first.0 + fragment.length.0,
    };
    fragments.iter().map(of).collect()
}

fn name_of<'a>(shapes: &'a Shapes, fragment: &Fragment) -> &'a str {
    shapes.get_index(fragment.parameter).map_or("", |(name, _)| name.as_str())
}

/// The order that was dealt out: `round_robin` put its element `order[i]` at place i.
fn before_dealing(dealt: &[(usize, Elements)], ranks: NonZeroU64) -> Vec<(usize, Elements)> {
    let dealt: Vec<_> = dealt.iter().copied().filter(|(_, numel)| numel.0 > 0).collect();
    let mut original: Vec<_> = round_robin(dealt.len(), ranks).into_iter().zip(dealt).collect();
    original.sort_unstable_by_key(|(place, _)| *place);
    original.into_iter().map(|(_, entry)| entry).collect()
}

type Difference = (String, Option<(u64, u64)>, Option<(u64, u64)>);

/// The first parameter that a file places elsewhere: what it records, and what was computed.
fn difference(
    shapes: &Shapes,
    fragments: &[Fragment],
    recorded: &IndexMap<String, FragmentAddress>,
) -> Option<Difference> {
    for fragment in fragments {
        let name = name_of(shapes, fragment);
        let computed = Some((fragment.offset.0, fragment.length.0));
        let found = recorded.get(name).map(|address| (address.start, address.length));
        if found != computed {
            return Some((name.to_owned(), found, computed));
        }
    }
    let known: HashSet<&str> = fragments.iter().map(|fragment| name_of(shapes, fragment)).collect();
    let (name, address) = recorded.iter().find(|(name, _)| !known.contains(name.as_str()))?;
    Some((name.clone(), Some((address.start, address.length)), None))
}

/// How many ranks there are, and this one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranks {
    /// Data-parallel ranks.
    pub(super) data: NonZeroU64,
    /// All ranks.
    pub(super) world: NonZeroU64,
    /// This one's data-parallel rank.
    pub(super) data_rank: u64,
    /// This one among all.
    pub(super) world_rank: u64,
}

/// A list of shards that were sliced together at stage 3.
#[derive(Clone, Debug)]
pub(super) struct Sliced<'a> {
    /// What it is, for errors.
    pub(super) what: String,
    /// Elements of each shard.
    pub(super) numels: Vec<u64>,
    /// Whether every tensor-parallel rank has all of each: what is cut is always shared by data-parallel ranks only.
    pub(super) whole: bool,
    /// The length of a rank's flat tensor.
    pub(super) length: u64,
    /// The shapes by name.
    pub(super) shapes: &'a Shapes,
}

impl<'a> Sliced<'a> {
    pub(super) fn new(
        what: String,
        shapes: &'a Shapes,
        length: u64,
        is_whole: impl Fn(&str) -> bool,
    ) -> Result<Self, ZeroFault> {
        let numels = numels(shapes)?.into_iter().map(|(_, numel)| numel.0).collect();
        Ok(Self { what, numels, whole: shapes.keys().all(|name| is_whole(name)), length, shapes })
    }

    fn fits(&self, ranks: NonZeroU64) -> bool {
        self.numels.iter().map(|numel| numel.div_ceil(ranks.get())).sum::<u64>() == self.length
    }

    /// What a rank holds of it.
    pub(super) fn share(&self, over: PartitionOver, ranks: Ranks) -> Share {
        let (partitions, position) = match over {
            PartitionOver::DataParallel => (ranks.data, ranks.data_rank),
            PartitionOver::World => (ranks.world, ranks.world_rank),
        };
        let shard = |(parameter, numel): (usize, &u64)| SliceShard {
            parameter,
            numel: Elements(*numel),
            over,
            partitions,
        };
        let shards = self.numels.iter().enumerate().map(shard).collect();
        let all = sub_groups(&[shards], Elements(u64::MAX));
        let fragments: Vec<_> = all.iter().flat_map(|group| group.fragments(position)).collect();
        Share { length: self.length, unpadded: self.length, held: held(self.shapes, &fragments) }
    }
}

/// Who shares each of a rank's sub-groups: under plain `zero.Init` what tensor parallelism leaves alone is sliced over
/// all ranks, everything else over the data-parallel ones.
///
/// `built_sliced`: whether the model may have been built under `zero.Init`.
pub(super) fn partitioned_over(
    all: &[Sliced<'_>],
    ranks: Ranks,
    built_sliced: bool,
) -> Result<Vec<PartitionOver>, ZeroFault> {
    let fits: Vec<_> = all.iter().map(|one| (one.fits(ranks.data), one.fits(ranks.world))).collect();
    let certain = |data, world| all.iter().zip(&fits).any(|(one, fit)| one.whole && *fit == (data, world));
    let only_world = certain(false, true) && !certain(true, false);
    let only_data = certain(true, false) && !certain(false, true);
    let over = |(one, fit): (&Sliced<'_>, &(bool, bool))| match *fit {
        (true, false) => Ok(PartitionOver::DataParallel),
        (false, true) if one.whole => Ok(PartitionOver::World),
        (false, _) => Err(ZeroFault::NoPartitionCount {
            what: one.what.clone(),
            length: one.length,
            data_ranks: ranks.data.get(),
            world: ranks.world.get(),
        }),
        _ if ranks.data == ranks.world || !one.whole || !built_sliced || only_data => {
            Ok(PartitionOver::DataParallel)
        }
        // With one element a parameter only the first rank holds any, whoever shares it.
        _ if only_world || one.numels.iter().all(|numel| *numel < 2) => Ok(PartitionOver::World),
        _ => Err(ZeroFault::TwoPartitionCounts {
            what: one.what.clone(),
            data_ranks: ranks.data.get(),
            world: ranks.world.get(),
        }),
    };
    all.iter().zip(&fits).map(over).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TP 2 x DP 2: who shares lists of shards, given by (elements of each, whether whole, length in the file).
    fn over(built_sliced: bool, all: &[(&[u64], bool, u64)]) -> Result<Vec<PartitionOver>, ZeroFault> {
        let two = NonZeroU64::new(2).unwrap();
        let ranks = Ranks { data: two, world: NonZeroU64::new(4).unwrap(), data_rank: 1, world_rank: 3 };
        let shapes = |numels: &[u64]| -> Shapes {
            (0..).zip(numels).map(|(at, numel): (u32, _)| (at.to_string(), vec![*numel])).collect()
        };
        let all_shapes: Vec<Shapes> = all.iter().map(|(numels, ..)| shapes(numels)).collect();
        let one = |(shapes, (_, whole, length))| {
            let (whole, length): (&bool, &u64) = (whole, length);
            Sliced::new("sub-group".to_owned(), shapes, *length, |_| *whole).unwrap()
        };
        let sliced: Vec<Sliced<'_>> =
            all_shapes.iter().zip(all.iter().map(|(n, w, l)| (n, w, l))).map(one).collect();
        partitioned_over(&sliced, ranks, built_sliced)
    }

    #[test]
    fn the_length_tells_who_shares_a_sub_group() {
        use PartitionOver::{DataParallel, World};
        // 7 and 5 over 2: 4 + 3; over 4: 2 + 2.
        assert_eq!(over(true, &[(&[7, 5], true, 7), (&[7, 5], true, 4)]), Ok(vec![DataParallel, World]));
        let neither = over(true, &[(&[7, 5], true, 6)]);
        assert!(matches!(neither, Err(ZeroFault::NoPartitionCount { length: 6, .. })));
        let cut = over(true, &[(&[7, 5], false, 4)]);
        assert!(matches!(cut, Err(ZeroFault::NoPartitionCount { .. })), "what is cut is never shared by all");
    }

    #[test]
    fn where_both_fit_something_else_must_tell() {
        use PartitionOver::{DataParallel, World};
        // 2 over 2 and over 4 is 1 either way, but other ranks hold it.
        let small: (&[u64], bool, u64) = (&[2], true, 1);
        assert!(matches!(over(true, &[small]), Err(ZeroFault::TwoPartitionCounts { .. })));
        assert_eq!(over(false, &[small]), Ok(vec![DataParallel]), "not built under zero.Init");
        assert_eq!(over(true, &[(&[2], false, 1)]), Ok(vec![DataParallel]), "cut");
        assert_eq!(over(true, &[(&[1, 1], true, 2)]), Ok(vec![World]), "only the first rank holds any");
        assert_eq!(over(true, &[small, (&[7], true, 2)]), Ok(vec![World, World]), "as the other one");
        assert_eq!(over(true, &[small, (&[7], true, 4)]), Ok(vec![DataParallel, DataParallel]));
        let undecided = over(true, &[small, (&[7], true, 2), (&[7], true, 4)]);
        assert!(matches!(undecided, Err(ZeroFault::TwoPartitionCounts { .. })));
        assert_eq!(
            over(true, &[small, (&[7], false, 4), (&[9], true, 3)]),
            Ok(vec![World, DataParallel, World])
        );
    }
}
