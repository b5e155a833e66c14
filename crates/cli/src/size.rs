//! Sizes as they are typed: an integer, and a unit if it is not bytes.
//!
//! ```text
//!   4096     64KiB = 64 * 1024     256MB = 256 * 1000 * 1000
//! ```

use reshard_layout::Bytes;

/// Longest first, so that `KiB` is not read as another unit's end.
const UNITS: [(&str, u64); 6] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

/// Reads a size.
pub(crate) fn size(text: &str) -> Result<Bytes, String> {
    let unit = UNITS.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)));
    let (digits, scale) = unit.unwrap_or((text, 1));
    let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    let count = if is_number { digits.parse::<u64>().ok() } else { None };
    count.and_then(|count| count.checked_mul(scale)).map(Bytes).ok_or_else(|| {
        "a size is an integer below 2^64, with KB, MB, GB, KiB, MiB or GiB if it is not bytes".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_integers_with_units_and_nothing_else() {
        let good = [
            ("0", 0),
            ("64", 64),
            ("3KB", 3_000),
            ("3KiB", 3_072),
            ("256MB", 256_000_000),
            ("256MiB", 268_435_456),
            ("2GB", 2_000_000_000),
            ("2GiB", 2_147_483_648),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in good {
            assert_eq!(size(text), Ok(Bytes(bytes)), "{text}");
        }
        for text in [
            "",
            "KB",
            "1.5GB",
            "-1",
            "+1",
            "64 MiB",
            "64mib",
            "64M",
            "1TB",
            "18446744073709551616",
            "17179869184GiB",
        ] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
