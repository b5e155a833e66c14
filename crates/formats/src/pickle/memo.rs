//! The memo of the machine: objects by the numbers under which they were put aside.
//!
//! ```text
//!   put 0, put 1, put 2 ...   a list: what every writer does        put 4294967295   a map, which may hold few
//! ```

use std::collections::HashMap;

use super::NodeId;
use super::fault::PickleFault;
use super::read::NODES_MAX;

/// Objects that may be put aside under numbers out of order.
const SPARSE_MAX: u64 = 1 << 20;

#[derive(Default)]
pub(super) struct Memo {
    dense: Vec<NodeId>,
    /// Keys beyond the list.
    sparse: HashMap<u64, NodeId>,
}

impl Memo {
    /// How many objects are in it.
    pub(super) fn len(&self) -> u64 {
        (self.dense.len() + self.sparse.len()) as u64
    }

    pub(super) fn get(&self, key: u64) -> Option<NodeId> {
        let dense = usize::try_from(key).ok().and_then(|key| self.dense.get(key));
        dense.or_else(|| self.sparse.get(&key)).copied()
    }

    pub(super) fn put(&mut self, key: u64, id: NodeId) -> Result<(), PickleFault> {
        let next = self.dense.len() as u64;
        if key < next {
            self.dense[key as usize] = id;
        } else if key == next {
            if next >= NODES_MAX {
                return Err(PickleFault::Limit { what: "objects in the memo", max: NODES_MAX });
            }
            self.sparse.remove(&key);
            self.dense.push(id);
        } else {
            if self.sparse.len() as u64 >= SPARSE_MAX && !self.sparse.contains_key(&key) {
                return Err(PickleFault::Limit { what: "objects out of order in the memo", max: SPARSE_MAX });
            }
            self.sparse.insert(key, id);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{Memo, SPARSE_MAX};
    use crate::pickle::NodeId;

    #[test]
    fn it_is_a_map_whatever_the_order() {
        let (mut memo, mut map) = (Memo::default(), HashMap::new());
        let keys = [0, 1, 3, 2, 2, 3, 4, u64::MAX, 6, 5, 6, 7, 0, 9, 1 << 40];
        for (id, key) in (0..).map(NodeId).zip(keys) {
            memo.put(key, id).unwrap();
            map.insert(key, id);
            assert_eq!(memo.len(), map.len() as u64);
            for key in (0..12).chain(keys) {
                assert_eq!(memo.get(key), map.get(&key).copied(), "{key}");
            }
        }
    }

    #[test]
    fn few_are_out_of_order() {
        let mut memo = Memo::default();
        for key in 0..SPARSE_MAX {
            memo.put(u64::MAX - key, NodeId(0)).unwrap();
        }
        memo.put(u64::MAX, NodeId(1)).unwrap();
        assert_eq!(
            memo.put(5, NodeId(0)).unwrap_err().to_string(),
            "the pickle has more than 1048576 objects out of order in the memo"
        );
    }
}
