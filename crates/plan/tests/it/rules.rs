//! Names, ties, refusals, policies and the worked examples of the reference.

use reshard_layout::affine::AffineFile;
use reshard_layout::{
    Block, Bytes, DType, Elements, Fill, Geometry, Kind, Layout, LayoutBuilder, Rank, Region,
};
use reshard_plan::{Policy, Request, VerifyError, plan, plan_with, unused_parameters, verify};

/// Name, shape and dtype.
type Named<'a> = (&'a str, &'a [u64], DType);

/// A layout with each parameter whole on each rank.
fn replicated(parameters: &[Named<'_>], aliases: &[(&str, usize)], ranks: u32) -> Layout {
    let mut builder = LayoutBuilder::new();
    let mut ids = Vec::new();
    for (name, shape, dtype) in parameters {
        let id = builder.parameter(name, shape.iter().copied(), *dtype);
        let geometry = builder.geometry(Geometry::whole(shape));
        for rank in 0..ranks {
            let length = Elements(shape.iter().product());
            let storage = builder.storage(Rank(rank), name, length.bytes(*dtype));
            let buffer = builder.buffer(storage, Bytes(0), *dtype, length);
            builder.place(id, buffer, Elements(0), geometry);
        }
        ids.push(id);
    }
    for (alias, at) in aliases {
        builder.alias(alias, ids[*at]);
    }
    builder.build().unwrap()
}

const F32: DType = DType::F32;

#[test]
fn refuses_what_the_layouts_do_not_say() {
    let source = replicated(&[("model.embed.weight", &[4, 2], F32), ("norm.weight", &[2], F32)], &[], 1);
    let cases: [(&[Named<'_>], Kind, &str); 3] = [
        (
            &[("model.embed.weights", &[4, 2], F32)],
            Kind::Invalid,
            "the source has no parameter model.embed.weights, the nearest name is model.embed.weight",
        ),
        (
            &[("norm.weight", &[2, 1], F32)],
            Kind::Invalid,
            "norm.weight: the source has shape [2], the target [2, 1]",
        ),
        (
            &[("norm.weight", &[2], DType::Bf16)],
            Kind::Unsupported,
            "norm.weight: the source holds f32, the target bf16, and a plan casts only with permission",
        ),
    ];
    for (parameters, kind, text) in cases {
        let error = plan(&source, &replicated(parameters, &[], 1), Policy::Lowest).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (kind, text));
    }
}

#[test]
fn tied_names_find_their_parameter_and_untied_onto_tied_is_refused() {
    let tied = replicated(&[("embed", &[4, 2], F32)], &[("head", 0)], 2);
    let untied = replicated(&[("embed", &[4, 2], F32), ("head", &[4, 2], F32)], &[], 2);
    let both = plan(&tied, &untied, Policy::Local).unwrap();
    assert_eq!(verify(&both, &tied, &untied).unwrap().elements, Elements(32));
    let error = plan(&untied, &tied, Policy::Local).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the target ties head to embed, which are two parameters of the source and may differ"
    );
    let only_head = replicated(&[("head", &[4, 2], F32)], &[], 1);
    assert_eq!(unused_parameters(&untied, &only_head), ["embed"]);
    assert_eq!(unused_parameters(&tied, &only_head), [""; 0]);
}

#[test]
fn balanced_spreads_what_nobody_has_and_keeps_what_is_there() {
    // Ranks 0 and 1 hold two vectors of 24 bytes; ranks 0 to 3 want them.
    let source = replicated(&[("a", &[6], F32), ("b", &[6], F32)], &[], 2);
    let target = replicated(&[("a", &[6], F32), ("b", &[6], F32)], &[], 4);
    let sent = |policy| plan(&source, &target, policy).unwrap().statistics.sent_by_rank;
    let bytes = |amounts: [u64; 4]| amounts.map(Bytes).to_vec();
    assert_eq!(sent(Policy::Lowest), bytes([144, 0, 0, 0]));
    assert_eq!(sent(Policy::Local), bytes([96, 0, 0, 0]));
    assert_eq!(sent(Policy::Balanced), bytes([48, 48, 0, 0]));
}

#[test]
fn a_callers_policy_is_asked_and_held_to_the_holders() {
    let source = replicated(&[("a", &[6], F32)], &[], 3);
    let highest = |request: &Request<'_>| *request.candidates.last().unwrap();
    let chosen = plan_with(&source, &source, highest).unwrap();
    assert_eq!(chosen.statistics.sent_by_rank, [Bytes(0), Bytes(0), Bytes(48)]);
    let nobody = |_: &Request<'_>| Rank(7);
    let error = plan_with(&source, &source, nobody).unwrap_err();
    assert_eq!(error.to_string(), "a: the policy chose rank 7 for box [0]+[6], the holders are 0, 1, 2");
}

/// One vector of six on one rank, stored with a scale.
fn scaled(scale: f64) -> Layout {
    let mut builder = LayoutBuilder::new();
    let a = builder.parameter("a", [6], F32);
    let storage = builder.storage(Rank(0), "a", Bytes(24));
    let buffer = builder.buffer(storage, Bytes(0), F32, Elements(6));
    let block = Block { scale, ..Block::dense(Region::whole(&[6]), Elements(0)) };
    let geometry = builder.geometry(Geometry::new([6], [block]));
    builder.place(a, buffer, Elements(0), geometry);
    builder.build().unwrap()
}

#[test]
fn equal_scales_move_bits_and_others_are_refused() {
    let (half, whole) = (scaled(0.5), scaled(1.0));
    let made = plan(&half, &half, Policy::Lowest).unwrap();
    verify(&made, &half, &half).unwrap();
    let error = plan(&half, &whole, Policy::Lowest).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (Kind::Unsupported, "a: box [0]+[6] has scale 0.5 on rank 0 and 1 in the target",)
    );
    // A plan that copies bits between the two is wrong, whoever made it.
    let differs = VerifyError::SidesDiffer { parameter: "a".to_owned(), what: "scale" };
    assert_eq!(verify(&made, &half, &whole), Err(differs.clone()));
    assert_eq!(verify(&made, &whole, &half), Err(differs));
}

#[test]
fn verify_holds_the_layouts_against_each_other() {
    let one = replicated(&[("a", &[2, 3], F32)], &[], 2);
    let made = plan(&one, &one, Policy::Local).unwrap();
    let what = |layout: &Layout| match verify(&made, layout, &one) {
        Err(VerifyError::SidesDiffer { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(what(&replicated(&[("a", &[3, 2], F32)], &[], 2)), "shape");
    let mut stale = made.clone();
    stale.statistics.bytes_sent = Bytes(1);
    assert_eq!(
        verify(&stale, &one, &one),
        Err(VerifyError::WrongStatistics { stated: Bytes(1), found: Bytes(0) })
    );
    stale = made.clone();
    stale.version += 1;
    assert_eq!(verify(&stale, &one, &one), Err(VerifyError::OtherVersion { expected: 2, found: 3 }));
    let tied = replicated(&[("a", &[2, 3], F32)], &[("b", 0)], 2);
    let untied = replicated(&[("a", &[2, 3], F32), ("b", &[2, 3], F32)], &[], 2);
    let mut forged = plan(&one, &tied, Policy::Local).unwrap();
    forged.source = untied.places().clone();
    assert!(matches!(verify(&forged, &untied, &tied), Err(VerifyError::SidesDiffer { .. })));
}

#[test]
fn target_padding_travels_with_the_plan() {
    let mut builder = LayoutBuilder::new();
    let a = builder.parameter("a", [6], F32);
    let storage = builder.storage(Rank(0), "flat", Bytes(32));
    let buffer = builder.buffer(storage, Bytes(0), F32, Elements(8));
    let geometry = builder.geometry(Geometry::whole(&[6]));
    builder.place(a, buffer, Elements(0), geometry);
    let dims = |value| [value].into_iter().collect();
    builder.fill(Fill { buffer, offset: Elements(6), shape: dims(2), strides: dims(1), value: vec![0; 4] });
    let target = builder.build().unwrap();
    let source = replicated(&[("a", &[6], F32)], &[], 1);
    let mut padded = plan(&source, &target, Policy::Lowest).unwrap();
    assert_eq!(padded.fills, target.fills());
    verify(&padded, &source, &target).unwrap();
    padded.fills.clear();
    verify(&padded, &source, &target).unwrap_err();
}

/// One parameter cut by row into the given widths, as the public form says it.
fn cut(shape: [u64; 2], axis: usize, widths: &[u64]) -> Layout {
    let mut at = 0;
    let mut ranks = Vec::new();
    for (rank, width) in widths.iter().enumerate() {
        let mut shard = shape;
        shard[axis] = *width;
        let offset = at * if axis == 0 { shape[1] } else { 1 };
        ranks.push(format!(
            r#""{rank}":{{"shard_shape":[{0},{1}],"pieces":[{{"shape":[{0},{1}],"source":[{offset},[{2},1]],
               "dest":[0,[{1},1]],"locations":[{rank}]}}]}}"#,
            shard[0], shard[1], shape[1]
        ));
        at += width;
    }
    let text = format!(
        r#"{{"version":1,"dtype":"f32","parameters":{{"w":{{"logical_shape":[{},{}],"ranks":{{{}}}}}}}}}"#,
        shape[0],
        shape[1],
        ranks.join(",")
    );
    AffineFile::from_json(&text).unwrap().to_layout().unwrap()
}

/// (shape, source rank and offset, target rank and offset) of each copy.
type Lines = Vec<(Vec<u64>, (u32, u64), (u32, u64))>;

fn lines(source: &Layout, target: &Layout) -> Lines {
    let made = plan(source, target, Policy::Lowest).unwrap();
    let line = |copy: &reshard_plan::Copy| {
        (
            copy.shape.to_vec(),
            (made.source_rank(copy).0, copy.source.offset.0),
            (made.target_rank(copy).0, copy.target.offset.0),
        )
    };
    made.copies.iter().map(line).collect()
}

#[test]
fn uneven_cuts_give_the_segments_of_the_reference() {
    let expected: Lines = vec![
        (vec![5, 4], (0, 0), (0, 0)),
        (vec![4, 4], (0, 20), (1, 0)),
        (vec![1, 4], (1, 0), (1, 16)),
        (vec![4, 4], (1, 4), (2, 0)),
        (vec![4, 4], (1, 20), (3, 0)),
    ];
    assert_eq!(lines(&cut([18, 4], 0, &[9, 9]), &cut([18, 4], 0, &[5, 5, 4, 4])), expected);
    let expected: Lines = vec![
        (vec![4, 5], (0, 0), (0, 0)),
        (vec![4, 4], (0, 5), (1, 0)),
        (vec![4, 1], (1, 0), (1, 4)),
        (vec![4, 4], (1, 1), (2, 0)),
        (vec![4, 4], (1, 5), (3, 0)),
    ];
    assert_eq!(lines(&cut([4, 18], 1, &[9, 9]), &cut([4, 18], 1, &[5, 5, 4, 4])), expected);
    let crossed = lines(&cut([8, 8], 0, &[4, 4]), &cut([8, 8], 1, &[2, 2, 2, 2]));
    let expected: Lines = (0..4)
        .flat_map(|t| [0, 1].map(|s| (vec![4, 2], (s, 2 * u64::from(t)), (t, 8 * u64::from(s)))))
        .collect();
    assert_eq!(crossed, expected);
}
