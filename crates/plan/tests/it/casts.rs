//! Casts: only with permission, only between floats, counted in the narrower type.

use reshard_layout::{Bytes, DType, Elements, Geometry, Kind, Layout, LayoutBuilder, Rank};
use reshard_plan::{Options, PlanError, Policy, Schedule, VerifyError, plan, verify};

/// A vector of six on one rank.
fn vector(rank: u32, dtype: DType) -> Layout {
    let mut builder = LayoutBuilder::new();
    let a = builder.parameter("a", [6], dtype);
    let storage = builder.storage(Rank(rank), "a", Elements(6).bytes(dtype));
    let buffer = builder.buffer(storage, Bytes(0), dtype, Elements(6));
    let geometry = builder.geometry(Geometry::whole(&[6]));
    builder.place(a, buffer, Elements(0), geometry);
    builder.build().unwrap()
}

const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::Bf16];
const OTHERS: [DType; 5] = [DType::F8E4m3, DType::F8E5m2, DType::I64, DType::I32, DType::U8];

#[test]
fn every_pair_of_types_needs_permission_and_only_floats_get_it() {
    for source_dtype in FLOATS.into_iter().chain(OTHERS) {
        for target_dtype in FLOATS.into_iter().chain(OTHERS) {
            let (source, target) = (vector(0, source_dtype), vector(1, target_dtype));
            let casting = || Options::new(Policy::Lowest).cast(true).plan(&source, &target);
            let refused = PlanError::DtypesDiffer { parameter: "a".to_owned(), source_dtype, target_dtype };
            assert_eq!(refused.kind(), Kind::Unsupported);
            let plain = plan(&source, &target, Policy::Lowest);
            if source_dtype == target_dtype {
                assert!(!plain.unwrap().cast);
            } else {
                assert_eq!(plain, Err(refused.clone()));
            }
            let both = FLOATS.contains(&source_dtype) && FLOATS.contains(&target_dtype);
            if both || source_dtype == target_dtype {
                let made = casting().unwrap();
                assert!(made.cast);
                verify(&made, &source, &target).unwrap();
            } else {
                assert_eq!(casting(), Err(refused));
            }
        }
    }
}

#[test]
fn a_refusal_says_what_would_help() {
    let text = |target, cast| {
        let options = Options::new(Policy::Lowest).cast(cast);
        options.plan(&vector(0, DType::F32), &vector(0, target)).unwrap_err().to_string()
    };
    let permission = "a: the source holds f32, the target bf16, and a plan casts only with permission";
    assert_eq!(text(DType::Bf16, false), permission);
    let floats =
        "a: the source holds f32, the target i32, and a plan casts only between f64, f32, f16 and bf16";
    assert_eq!((text(DType::I32, false), text(DType::I32, true)), (floats.to_owned(), floats.to_owned()));
}

/// Six elements: 48 bytes of f64, 24 of f32, 12 of f16 and bf16.
#[test]
fn the_narrower_type_is_on_the_wire_and_the_targets_at_home() {
    use DType::{Bf16, F16, F32, F64};
    // Source, target, bytes sent, bytes if local, type on the wire.
    let cases = [
        (F32, Bf16, 12, 12, Bf16),
        (Bf16, F32, 12, 24, Bf16),
        (F64, F32, 24, 24, F32),
        (F16, F64, 12, 48, F16),
        (F16, Bf16, 12, 12, F16),
        (Bf16, F16, 12, 12, Bf16),
        (F32, F32, 24, 24, F32),
    ];
    for (from, to, sent, local, wire) in cases {
        let of = |rank| Options::new(Policy::Balanced).cast(true).plan(&vector(0, from), &vector(rank, to));
        let away = of(1).unwrap();
        assert_eq!((away.statistics.bytes_sent, away.statistics.bytes_local), (Bytes(sent), Bytes(0)));
        assert_eq!(away.statistics.sent_by_rank, [Bytes(sent), Bytes(0)]);
        assert_eq!(away.types(&away.copies[0]), (from, to));
        let share = Schedule::new(&away, Bytes(256)).unwrap().share(&away, Rank(1)).unwrap();
        let message = share.rounds[0].receive.as_ref().unwrap();
        assert_eq!((message.bytes, message.boxes[0].wire), (Bytes(sent), wire));
        let home = of(0).unwrap();
        assert_eq!((home.statistics.bytes_sent, home.statistics.bytes_local), (Bytes(0), Bytes(local)));
    }
}

#[test]
fn a_callers_policy_sees_wire_bytes() {
    let mut seen = Vec::new();
    let options = Options::ask(|request| {
        seen.push(request.bytes);
        request.candidates[0]
    });
    options.cast(true).plan(&vector(0, DType::F32), &vector(1, DType::Bf16)).unwrap();
    assert_eq!(seen, [Bytes(12)]);
    let custom = Options::new(Policy::Custom).plan(&vector(0, DType::F32), &vector(0, DType::F32));
    assert_eq!(custom, Err(PlanError::NoSelector));
}

#[test]
fn permission_is_part_of_the_plan_and_of_its_proof() {
    let (source, target) = (vector(0, DType::F32), vector(1, DType::Bf16));
    let mut made = Options::new(Policy::Lowest).cast(true).plan(&source, &target).unwrap();
    let same = vector(1, DType::F32);
    let plain = plan(&source, &same, Policy::Lowest).unwrap();
    let permitted = Options::new(Policy::Lowest).cast(true).plan(&source, &same).unwrap();
    assert_ne!(plain.fingerprint, permitted.fingerprint);
    assert_eq!(plain.copies, permitted.copies);
    made.statistics.bytes_sent = Bytes(24);
    assert_eq!(
        verify(&made, &source, &target),
        Err(VerifyError::WrongStatistics { stated: Bytes(24), found: Bytes(12) })
    );
    made.statistics.bytes_sent = Bytes(12);
    verify(&made, &source, &target).unwrap();
    made.cast = false;
    assert_eq!(
        verify(&made, &source, &target),
        Err(VerifyError::SidesDiffer { parameter: "a".to_owned(), what: "dtype" })
    );
    // Permission does not turn a float into a number.
    let (whole, number) = (vector(0, DType::F32), vector(1, DType::I32));
    let mut forged = permitted;
    forged.target = number.places().clone();
    assert_eq!(
        verify(&forged, &whole, &number),
        Err(VerifyError::SidesDiffer { parameter: "a".to_owned(), what: "dtype" })
    );
}
