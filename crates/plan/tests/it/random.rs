//! Thousands of random layouts: plan and verify against an enumeration of every element.

use std::collections::BTreeSet;

use proptest::prelude::*;
use reshard_layout::strategies::layout_pairs;
use reshard_layout::{Elements, Layout};
use reshard_plan::{Plan, Policy, VerifyError, plan, verify};

use crate::elements::{Place, assert_right, held, is_right, moved};

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

    /// `verify` says no to a plan exactly if the enumeration does, whatever was done to one copy. Where only
    /// the label of a copy is wrong, its bytes are right; `verify` still says no.
    #[test]
    fn verify_sees_every_damage((source, target) in layout_pairs(), which in any::<usize>(), damage in 0..9, amount in 1u64..3) {
        let mut damaged = plan(&source, &target, Policy::Balanced).unwrap();
        prop_assume!(!damaged.copies.is_empty());
        let at = which % damaged.copies.len();
        let copy = &mut damaged.copies[at];
        let axis = copy.shape.iter().position(|&extent| extent > 1);
        let mut label_only = false;
        match (damage, axis) {
            (0, _) => copy.source.offset = Elements(copy.source.offset.0 + amount),
            (1, _) => copy.target.offset = Elements(copy.target.offset.0 + amount),
            (2, Some(axis)) => copy.source.strides[axis] += amount,
            (3, Some(axis)) => copy.target.strides[axis] += amount,
            (4, Some(axis)) => copy.shape[axis] -= 1,
            (5, _) => { damaged.copies.remove(at); }
            (6, _) => { let again = copy.clone(); damaged.copies.push(again); }
            (7, _) => { let other = (at + 1) % damaged.copies.len(); let from = damaged.copies[other].source.clone(); damaged.copies[at].source = from; }
            _ => {
                copy.origin.iter_mut().for_each(|at| *at += amount);
                label_only = !copy.origin.is_empty();
            }
        }
        let right = is_right(&damaged, &source, &target) && !label_only;
        // Another holder of the same box is right too, only the sums are then others.
        let found = match verify(&damaged, &source, &target) {
            Ok(_) | Err(VerifyError::WrongStatistics { .. }) => true,
            Err(_) => false,
        };
        prop_assert_eq!(found, right);
    }
}
