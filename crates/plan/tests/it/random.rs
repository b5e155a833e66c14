//! Thousands of random layouts: plan and verify against an enumeration of every element.

use std::collections::BTreeSet;

use proptest::prelude::*;
use reshard_layout::strategies::layout_pairs;
use reshard_layout::{Dims, Elements, Layout};
use reshard_plan::{Plan, Policy, plan, verify};

use crate::elements::{Place, assert_right, held, moved};

/// All ranks that hold the element that `read` holds.
fn holders(source: &Layout, read: &Place) -> BTreeSet<u32> {
    let held = held(source);
    held.iter().filter(|(_, element)| *element == &held[read]).map(|(place, _)| place.0).collect()
}

fn assert_policy(plan: &Plan, source: &Layout) {
    for (written, read) in moved(plan) {
        let holders = holders(source, &read);
        let own = holders.contains(&written.0);
        let lowest = *holders.first().unwrap();
        match plan.policy {
            Policy::Lowest => assert_eq!(read.0, lowest),
            Policy::Local => assert_eq!(read.0, if own { written.0 } else { lowest }),
            _ => assert!(!own || read.0 == written.0),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn every_element_is_written_once_from_its_place((source, target) in layout_pairs()) {
        for policy in [Policy::Lowest, Policy::Local, Policy::Balanced] {
            let plan = plan(&source, &target, policy).unwrap();
            assert_right(&plan, &source, &target);
            let verified = verify(&plan, &source, &target).unwrap();
            prop_assert_eq!(verified.elements.0, held(&target).len() as u64);
            assert_policy(&plan, &source);
            let bytes = plan.statistics.bytes_local.0 + plan.statistics.bytes_sent.0;
            prop_assert_eq!(bytes, verified.elements.0 * 4);
        }
    }

    #[test]
    fn the_same_inputs_give_the_same_bytes((source, target) in layout_pairs()) {
        let bytes = || serde_json::to_vec(&plan(&source, &target, Policy::Balanced).unwrap()).unwrap();
        prop_assert_eq!(bytes(), bytes());
    }

    /// `verify` says no to a plan exactly if the enumeration does, whatever was done to one copy.
    #[test]
    fn verify_sees_every_damage((source, target) in layout_pairs(), which in any::<usize>(), damage in 0..8, amount in 1u64..3) {
        let mut damaged = plan(&source, &target, Policy::Balanced).unwrap();
        prop_assume!(!damaged.copies.is_empty());
        let at = which % damaged.copies.len();
        let copy = &mut damaged.copies[at];
        let axis = copy.shape.iter().position(|&extent| extent > 1);
        match (damage, axis) {
            (0, _) => copy.source.offset = Elements(copy.source.offset.0 + amount),
            (1, _) => copy.target.offset = Elements(copy.target.offset.0 + amount),
            (2, Some(axis)) => copy.source.strides[axis] += amount,
            (3, Some(axis)) => copy.target.strides[axis] += amount,
            (4, Some(axis)) => copy.shape[axis] -= 1,
            (5, _) => { damaged.copies.remove(at); }
            (6, _) => { let again = copy.clone(); damaged.copies.push(again); }
            (_, Some(axis)) => copy.origin[axis] += amount,
            _ => copy.origin.iter_mut().for_each(|at| *at += amount),
        }
        let scalar = source.parameters().any(|(_, parameter)| parameter.shape == Dims::new());
        let unchanged = plan(&source, &target, Policy::Balanced).unwrap() == damaged;
        prop_assert!(verify(&damaged, &source, &target).is_err() || (scalar && unchanged));
    }
}
