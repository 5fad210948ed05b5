//! Acknowledgements that a submitter wrote down.

use std::path::Path;

use godel_audit::Acknowledged;
use godel_base::ids::Revision;

use crate::exit::Failure;

/// Reads a ledger: `uid,name,revision` lines. A torn last line, without its end, does not count.
///
/// # Errors
/// The file cannot be read, or a line is wrong.
pub fn read_ledger(path: &Path) -> Result<Vec<Acknowledged>, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("the ledger {} cannot be read: {error}", path.display())))?;
    parse_ledger(&text).map_err(|what| Failure::usage(format!("{}:{what}", path.display())))
}

fn parse_ledger(text: &str) -> Result<Vec<Acknowledged>, String> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut ledger = Vec::new();
    for (idx, line) in whole.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let mut fields = line.split(',');
        let entry = (|| {
            let (uid, name) = (fields.next()?, fields.next()?);
            let revision = fields.next()?.parse().ok()?;
            fields.next().is_none().then(|| Acknowledged {
                uid: uid.to_owned(),
                name: name.to_owned(),
                revision: Revision(revision),
            })
        })();
        ledger.push(entry.ok_or_else(|| format!("{}: `{line}` is not uid,name,revision", idx + 1))?);
    }
    Ok(ledger)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledgers_are_read_up_to_a_torn_line() {
        let ledger = parse_ledger("u-1,a,5\nu-2,shop/b,6\nu-3,c").unwrap();
        assert_eq!(ledger.len(), 2);
        assert_eq!((ledger[1].name.as_str(), ledger[1].revision), ("shop/b", Revision(6)));
        assert_eq!(parse_ledger("").unwrap(), []);
        assert_eq!(parse_ledger("u-1,a\n").unwrap_err(), "1: `u-1,a` is not uid,name,revision");
        assert_eq!(parse_ledger("u-1,a,5\nu,a,x\n").unwrap_err(), "2: `u,a,x` is not uid,name,revision");
    }
}
