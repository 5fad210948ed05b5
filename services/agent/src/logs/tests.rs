use super::*;

/// A log with files of 10 bytes of which three are kept, into which `writes` were written.
fn log(writes: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for text in writes {
        // A keeper for each: the log goes on behind what is there.
        LogWriter::open(dir.path(), 10, 3).unwrap().write(text.as_bytes());
    }
    dir
}

fn text(part: &Part) -> &str {
    std::str::from_utf8(&part.bytes).unwrap()
}

#[test]
fn what_is_written_is_read_in_order_from_any_offset() {
    let dir = log(&["first\n", "second line\n", "3"]);
    let names: Vec<u64> = segments(dir.path()).unwrap().iter().map(|segment| segment.start).collect();
    assert_eq!(names, [0, 10]);
    for (offset, n_bytes_max, expected, start, next) in [
        (0, 100, "first\nsecond line\n3", 0, 19),
        (0, 6, "first\n", 0, 6),
        (6, 12, "second line\n", 6, 18),
        (9, 2, "on", 9, 11),
        (18, 100, "3", 18, 19),
        (19, 100, "", 19, 19),
        (u64::MAX, 100, "", 19, 19),
        (3, 0, "", 3, 3),
    ] {
        let part = read(dir.path(), offset, n_bytes_max).unwrap();
        assert_eq!((text(&part), part.start, part.next, part.end), (expected, start, next, 19), "{offset}");
    }
}

#[test]
fn the_oldest_files_are_removed_and_nothing_else_is_lost() {
    let all: String = (0..40).map(|n| format!("line {n}\n")).collect();
    let dir = log(&[]);
    let mut writer = LogWriter::open(dir.path(), 10, 3).unwrap();
    for (n, piece) in all.as_bytes().chunks(7).enumerate() {
        writer.write(piece);
        let part = read(dir.path(), 0, usize::MAX).unwrap();
        let written = &all.as_bytes()[..(7 * n + piece.len())];
        assert!(written.ends_with(&part.bytes), "{n}");
        assert!(part.bytes.len() >= written.len().min(20), "two full files are kept at any time");
        assert!(part.bytes.len() <= 30);
    }
    let kept = read(dir.path(), 0, usize::MAX).unwrap();
    assert_eq!((kept.end, kept.next), (all.len() as u64, all.len() as u64));
    assert_eq!(kept.start % 10, 0);
}

#[test]
fn the_last_lines_begin_where_they_are() {
    let dir = log(&["one\ntwo\nthree\nfour\nfive"]);
    let from = |n_lines, n_bytes_max| {
        let offset = last_lines(dir.path(), n_lines, n_bytes_max).unwrap();
        text(&read(dir.path(), offset, usize::MAX).unwrap()).to_owned()
    };
    for (n_lines, n_bytes_max, expected) in [
        (0, 100, ""),
        (1, 100, "five"),
        (2, 100, "four\nfive"),
        (4, 100, "two\nthree\nfour\nfive"),
        (9, 100, "one\ntwo\nthree\nfour\nfive"),
        (9, 6, "r\nfive"),
    ] {
        assert_eq!(from(n_lines, n_bytes_max), expected, "{n_lines}");
    }
    let ended = log(&["a\nb\n"]);
    assert_eq!(last_lines(ended.path(), 1, 100).unwrap(), 2);
    // Of a long log only the end is there.
    let long = log(&["0123456789\n123456789\n123456789\n123456789\n"]);
    let first = read(long.path(), 0, 0).unwrap().start;
    assert_eq!((first, last_lines(long.path(), 100, 100).unwrap()), (20, 20));
}

#[test]
fn a_follower_reads_on_from_where_it_was() {
    let dir = log(&["a\n"]);
    let first = read(dir.path(), 0, 100).unwrap();
    assert_eq!(read(dir.path(), first.next, 100).unwrap().bytes, b"");
    LogWriter::open(dir.path(), 10, 3).unwrap().write(b"b\n");
    let second = read(dir.path(), first.next, 100).unwrap();
    assert_eq!((text(&second), second.start), ("b\n", 2));
    // One that is too slow is told where what is left begins.
    LogWriter::open(dir.path(), 10, 3).unwrap().write(&[b'x'; 50]);
    let third = read(dir.path(), second.next, 100).unwrap();
    assert_eq!((third.start, third.next), (30, 54));
}

#[test]
fn what_units_write_is_private_and_links_are_not_followed() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let (logs, victim) = (dir.path().join("logs"), dir.path().join("victim"));
    let mut writer = LogWriter::open(&logs, 4, 100).unwrap();
    writer.write(b"1234");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&logs), mode(&segment_path(&logs, 0))), (0o700, 0o600));
    fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, segment_path(&logs, 4)).unwrap();
    writer.write(b"5678");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    // What could not be written is said once something can be.
    fs::remove_file(segment_path(&logs, 4)).unwrap();
    writer.write(b"9");
    let part = read(&logs, 0, usize::MAX).unwrap();
    let said = text(&part);
    assert!(said.starts_with("1234\n[godel: 4 bytes of output could not be written: "), "{said}");
    assert!(said.ends_with("]\n9"), "{said}");
}

#[test]
fn a_log_that_is_not_there_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    assert_eq!(read(&missing, 0, 1).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert!(last_lines(&missing, 1, 1).is_err());
    assert_eq!(dir_name(RunKey { unit: 17, ordinal: 2 }, 3), "17-2-3");
}
