//! Numbers and text of protocol 0, which are lines.

/// Digits that an integer may have: Python's own limit.
const DIGITS_MAX: usize = 4300;

/// The little-endian two's complement of a decimal number, as short as it can be.
pub(super) fn decimal(text: &str) -> Option<Vec<u8>> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    if digits.is_empty() || digits.len() > DIGITS_MAX || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let mut bytes: Vec<u8> = Vec::new();
    for digit in digits.bytes() {
        let mut carry = u32::from(digit - b'0');
        for byte in &mut bytes {
            let value = u32::from(*byte) * 10 + carry;
            *byte = (value & 0xff) as u8;
            carry = value >> 8;
        }
        if carry > 0 {
            bytes.push(carry as u8);
        }
    }
    bytes.push(0);
    if negative {
        negate(&mut bytes);
    }
    shorten(&mut bytes);
    Some(bytes)
}

fn negate(bytes: &mut [u8]) {
    let mut carry = true;
    for byte in bytes {
        let (value, overflow) = (!*byte).overflowing_add(u8::from(carry));
        *byte = value;
        carry = overflow;
    }
}

/// Drops bytes that only repeat the sign.
pub(super) fn shorten(bytes: &mut Vec<u8>) {
    while let [.., before, last] = bytes[..] {
        if (last == 0 && before < 0x80) || (last == 0xff && before >= 0x80) {
            bytes.pop();
        } else {
            break;
        }
    }
    if bytes[..] == [0] {
        bytes.clear();
    }
}

/// A Python 2 string in quotes, with its escapes resolved.
pub(super) fn quoted(line: &[u8]) -> Option<Vec<u8>> {
    let (quote @ (b'\'' | b'"'), inner) = (*line.first()?, line.get(1..line.len().checked_sub(1)?)?) else {
        return None;
    };
    if line.len() < 2 || line.last() != Some(&quote) {
        return None;
    }
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let Some((&first, after)) = rest.split_first() {
        if first != b'\\' {
            bytes.push(first);
            rest = after;
            continue;
        }
        let (&kind, after) = after.split_first()?;
        let (byte, taken) = match kind {
            b'\\' | b'\'' | b'"' => (kind, 0),
            b'n' => (b'\n', 0),
            b'r' => (b'\r', 0),
            b't' => (b'\t', 0),
            b'x' => (u8::try_from(hexadecimal(after.get(..2)?)?).ok()?, 2),
            _ => return None,
        };
        bytes.push(byte);
        rest = &after[taken..];
    }
    Some(bytes)
}

/// Text of which only what Latin-1 lacks is escaped (`raw-unicode-escape`).
pub(super) fn raw_unicode(line: &[u8]) -> Option<String> {
    let mut text = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((&first, after)) = rest.split_first() {
        let digits = match (first, after.first()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => 0,
        };
        if digits == 0 {
            text.push(char::from(first));
            rest = after;
        } else {
            text.push(char::from_u32(hexadecimal(after.get(1..=digits)?)?)?);
            rest = &after[1 + digits..];
        }
    }
    Some(text)
}

fn hexadecimal(digits: &[u8]) -> Option<u32> {
    digits
        .iter()
        .try_fold(0, |value: u32, digit| Some(value.checked_mul(16)? + char::from(*digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::{decimal, quoted, raw_unicode};

    #[test]
    fn decimals_are_twos_complement() {
        for value in [0, 1, -1, 127, 128, -128, -129, 255, 256, 65_535, -65_536, i64::MAX, i64::MIN] {
            let mut expected = value.to_le_bytes().to_vec();
            while expected.len() > 1 {
                let sign = if expected[expected.len() - 2] >= 0x80 { 0xff } else { 0 };
                if expected[expected.len() - 1] != sign {
                    break;
                }
                expected.pop();
            }
            if value == 0 {
                expected.clear();
            }
            assert_eq!(decimal(&value.to_string()), Some(expected), "{value}");
        }
        // 2^64, as pickle.encode_long writes it.
        assert_eq!(decimal("18446744073709551616"), Some(vec![0, 0, 0, 0, 0, 0, 0, 0, 1]));
        for wrong in ["", "-", "1x", "+1", " 1", &"9".repeat(4301)] {
            assert_eq!(decimal(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn escapes_are_resolved() {
        assert_eq!(quoted(br#"'a\x41\n\'"'"#), Some(b"aA\n'\"".to_vec()));
        for wrong in [&b""[..], b"'", b"a", b"'a\"", br"'\", br"'\x4'", br"'\q'"] {
            assert_eq!(quoted(wrong), None, "{wrong:?}");
        }
        assert_eq!(raw_unicode(b"\xe9\\u20ac\\U0001f600\\n").as_deref(), Some("\u{e9}\u{20ac}\u{1f600}\\n"));
        for wrong in [&br"\u20a"[..], br"\ud800", br"\U00110000", br"\uxxxx"] {
            assert_eq!(raw_unicode(wrong), None, "{wrong:?}");
        }
    }
}
