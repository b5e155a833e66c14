//! Boxes looked up by one axis: a balanced tree of intervals, laid out in a sorted array.
//!
//! ```text
//!   begin   0   2   3   5   8       each position is the root of its half of the array and knows the furthest
//!   end     9   4   4   6   9       end in it: a half that ends before the box, or begins after it, is left out
//! ```
//!
//! For [`verify`](crate::verify) alone: the planner finds overlaps in another way.

use reshard_layout::Region;

/// Boxes, sorted along the axis on which they begin at most different coordinates.
pub(crate) struct Intervals {
    axis: usize,
    nodes: Vec<Node>,
}

struct Node {
    begin: u64,
    end: u64,
    /// The furthest end in the half of the array that this node is the root of.
    furthest: u64,
    position: usize,
}

impl Intervals {
    /// An index of boxes that all have the same number of axes.
    pub(crate) fn new<'a>(boxes: impl Iterator<Item = &'a Region> + Clone) -> Self {
        let axes = boxes.clone().next().map_or(0, Region::axes);
        let distinct = |axis: &usize| {
            let mut begins: Vec<u64> = boxes.clone().map(|region| region.origin()[*axis]).collect();
            begins.sort_unstable();
            begins.dedup();
            begins.len()
        };
        let axis = (0..axes).max_by_key(distinct).unwrap_or(0);
        let node = |(position, region): (usize, &Region)| {
            let (begin, end) = span(region, axis);
            Node { begin, end, furthest: end, position }
        };
        let mut nodes: Vec<Node> = boxes.enumerate().map(node).collect();
        nodes.sort_unstable_by_key(|node| (node.begin, node.position));
        raise(&mut nodes);
        Self { axis, nodes }
    }

    /// Calls `met` with the position of every box that meets the region along the axis.
    pub(crate) fn meeting(&self, region: &Region, met: &mut impl FnMut(usize)) {
        let (begin, end) = span(region, self.axis);
        visit(&self.nodes, begin, end, met);
    }
}

/// Along an axis of a box; a box without axes is one point.
fn span(region: &Region, axis: usize) -> (u64, u64) {
    if region.axes() == 0 { (0, 1) } else { (region.origin()[axis], region.end(axis)) }
}

/// Works out `furthest` from the leaves up, and returns that of the root.
fn raise(nodes: &mut [Node]) -> u64 {
    let middle = nodes.len() / 2;
    let (low, rest) = nodes.split_at_mut(middle);
    let Some((root, high)) = rest.split_first_mut() else { return 0 };
    let below = if low.is_empty() { 0 } else { raise(low) };
    let above = if high.is_empty() { 0 } else { raise(high) };
    root.furthest = root.end.max(below).max(above);
    root.furthest
}

fn visit(nodes: &[Node], begin: u64, end: u64, met: &mut impl FnMut(usize)) {
    let middle = nodes.len() / 2;
    let Some(root) = nodes.get(middle) else { return };
    if root.furthest <= begin {
        return;
    }
    visit(&nodes[..middle], begin, end, met);
    if root.begin < end {
        if root.end > begin {
            met(root.position);
        }
        visit(&nodes[middle + 1..], begin, end, met);
    }
}
