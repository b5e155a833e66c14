//! All answers of the real planner: the same element at each target address from the same rank, and the same
//! kind for every invalid case. What that planner only does not express may be planned here.

use std::collections::{BTreeMap, BTreeSet};

use reshard_layout::affine::AffineMap;
use reshard_layout::{DType, Kind, Layout, coordinate};
use reshard_plan::{Plan, Policy, Request, plan, plan_with, verify};
use serde_json::Value;

use crate::elements::assert_right;

/// All cases where the shared data is there, else the part of them that the repository carries; and how many
/// of them have a plan, are refused here too, and are refused there but planned here.
fn cases() -> (Vec<Value>, [usize; 3]) {
    let here = env!("CARGO_MANIFEST_DIR");
    let shared = format!("{here}/../../../shared/data/deepspeed/plans/cases.json");
    let (text, counts) = match std::fs::read_to_string(&shared) {
        Ok(text) => (text, ALL),
        Err(_) => {
            eprintln!("the shared ground truth is absent: only the repository's selection of it is tested");
            (std::fs::read_to_string(format!("{here}/tests/data/plan_cases.json")).unwrap(), SELECTED)
        }
    };
    (serde_json::from_str(&text).unwrap(), counts)
}

/// Of all 233 cases, and of the selection.
const ALL: [usize; 3] = [168, 48, 17];
const SELECTED: [usize; 3] = [65, 48, 17];

fn layout(map: &Value) -> Result<Layout, Kind> {
    let map: AffineMap = serde_json::from_value(map.clone()).map_err(|_| Kind::Invalid)?;
    map.to_layout("w", DType::F32).map_err(|error| error.kind())
}

fn make(case: &Value) -> Result<(Plan, Layout, Layout), Kind> {
    let (source, target) = (layout(&case["source"])?, layout(&case["target"])?);
    let made = if case["policy"] == "highest" {
        plan_with(&source, &target, |request: &Request<'_>| *request.candidates.last().unwrap())
    } else {
        plan(&source, &target, Policy::Lowest)
    };
    made.map(|plan| (plan, source, target)).map_err(|error| error.kind())
}

/// One strided copy between shards, with the ranks as labels.
struct Segment {
    shape: Vec<u64>,
    source: (u64, u64, Vec<u64>),
    target: (u64, u64, Vec<u64>),
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|item| item.as_u64().unwrap()).collect()
}

fn theirs(plan: &Value) -> Vec<Segment> {
    let end = |end: &Value| (end[0].as_u64().unwrap(), end[1].as_u64().unwrap(), numbers(&end[2]));
    let segment = |segment: &Value| Segment {
        shape: numbers(&segment["shape"]),
        source: end(&segment["source"]),
        target: end(&segment["target"]),
    };
    plan["segments"].as_array().unwrap().iter().map(segment).collect()
}

fn ours(plan: &Plan) -> Vec<Segment> {
    let segment = |copy: &reshard_plan::Copy| Segment {
        shape: copy.shape.to_vec(),
        source: (plan.source_rank(copy).0.into(), copy.source.offset.0, copy.source.strides.to_vec()),
        target: (plan.target_rank(copy).0.into(), copy.target.offset.0, copy.target.strides.to_vec()),
    };
    plan.copies.iter().map(segment).collect()
}

impl Segment {
    fn volume(&self) -> u64 {
        self.shape.iter().product()
    }

    fn at(&self, within: &[u64]) -> ((u64, u64), (u64, u64)) {
        let address = |end: &(u64, u64, Vec<u64>)| {
            (end.0, end.1 + within.iter().zip(&end.2).map(|(at, stride)| at * stride).sum::<u64>())
        };
        (address(&self.target), address(&self.source))
    }

    /// The source of a target address, if the segment writes it.
    fn source_of(&self, rank: u64, address: u64) -> Option<(u64, u64)> {
        let mut order: Vec<usize> = (0..self.shape.len()).filter(|&axis| self.shape[axis] > 1).collect();
        order.sort_by_key(|&axis| std::cmp::Reverse(self.target.2[axis]));
        let mut rest = address.checked_sub(self.target.1).filter(|_| rank == self.target.0)?;
        let mut within = vec![0; self.shape.len()];
        for axis in order {
            within[axis] = (rest / self.target.2[axis]).min(self.shape[axis] - 1);
            rest -= within[axis] * self.target.2[axis];
        }
        (rest == 0).then(|| self.at(&within).1)
    }
}

type Moves = BTreeMap<(u64, u64), (u64, u64)>;

fn enumerate(segments: &[Segment]) -> Moves {
    let mut all = Moves::new();
    for segment in segments {
        for index in 0..segment.volume() {
            let (to, from) = segment.at(&coordinate(index, &segment.shape));
            assert!(all.insert(to, from).is_none(), "{to:?} is written twice");
        }
    }
    all
}

/// Too many elements to walk: corners and inner points of each one's boxes must have the other's answer.
fn assert_same_boxes(name: &str, one: &[Segment], other: &[Segment]) {
    assert_eq!(
        one.iter().map(Segment::volume).sum::<u64>(),
        other.iter().map(Segment::volume).sum::<u64>(),
        "{name}"
    );
    for (asked, answering) in [(one, other), (other, one)] {
        for segment in asked {
            for point in probes(&segment.shape) {
                let (to, from) = segment.at(&point);
                let answers: Vec<_> =
                    answering.iter().filter_map(|candidate| candidate.source_of(to.0, to.1)).collect();
                assert_eq!(answers, [from], "{name}: {to:?}");
            }
        }
    }
}

/// Both ends, their neighbours, the middle and a third of every axis, in all combinations.
fn probes(shape: &[u64]) -> Vec<Vec<u64>> {
    shape.iter().fold(vec![Vec::new()], |points, &extent| {
        let last = extent - 1;
        let picks: BTreeSet<u64> =
            [0, 1.min(last), extent / 3, extent / 2, last.saturating_sub(1), last].into();
        let extend =
            |point: &Vec<u64>| picks.iter().map(|&at| [point.clone(), vec![at]].concat()).collect::<Vec<_>>();
        points.iter().flat_map(extend).collect()
    })
}

const WALKED_MAX: u64 = 1 << 20;

fn assert_agrees(case: &Value, expected: &Value) {
    let name = case["name"].as_str().unwrap();
    let (made, source, target) = make(case).unwrap_or_else(|kind| panic!("{name} is refused as {kind:?}"));
    let verified = verify(&made, &source, &target).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(verified.elements.0, expected["moved_elements"].as_u64().unwrap(), "{name}");
    let (one, other) = (theirs(expected), ours(&made));
    if verified.elements.0 <= WALKED_MAX {
        assert_eq!(enumerate(&one), enumerate(&other), "{name}");
    } else {
        assert_same_boxes(name, &one, &other);
    }
}

#[test]
fn agrees_with_the_real_planner_on_every_plan() {
    let (cases, [plans, ..]) = cases();
    let mut planned = 0;
    for case in &cases {
        let expected = if case["plan"].is_object() { &case["plan"] } else { &case["plan_without_limits"] };
        if expected.is_object() {
            assert_agrees(case, expected);
            planned += 1;
        }
    }
    assert_eq!(planned, plans);
}

/// What became of a case that the real planner refuses and has no plan for.
#[derive(PartialEq)]
enum Outcome {
    Refused,
    Planned,
}

fn outcome(case: &Value) -> Outcome {
    let name = case["name"].as_str().unwrap();
    match case["refused"]["kind"].as_str().unwrap() {
        "InvalidMapError" | "ValueError" => {
            assert_eq!(make(case).err(), Some(Kind::Invalid), "{name}");
            Outcome::Refused
        }
        "ZeroDivisionError" => {
            assert!(make(case).is_err(), "{name}");
            Outcome::Refused
        }
        "UnsupportedLayoutError" => match make(case) {
            Ok((made, source, target)) => {
                verify(&made, &source, &target).unwrap();
                assert_right(&made, &source, &target);
                Outcome::Planned
            }
            Err(kind) => {
                assert_eq!(kind, Kind::Unsupported, "{name}");
                assert!(name.contains("scale") || name.contains("divided"), "{name} could be planned");
                Outcome::Refused
            }
        },
        other => panic!("{name} is refused as {other}, which no rule here speaks of"),
    }
}

#[test]
fn refuses_what_contradicts_itself_and_plans_the_rest() {
    let (cases, [_, refused, planned]) = cases();
    let refusals = |case: &&Value| case["refused"].is_object() && !case["plan_without_limits"].is_object();
    let outcomes: Vec<Outcome> = cases.iter().filter(refusals).map(outcome).collect();
    let count = |wanted: Outcome| outcomes.iter().filter(|&outcome| *outcome == wanted).count();
    assert_eq!((count(Outcome::Refused), count(Outcome::Planned)), (refused, planned));
}
