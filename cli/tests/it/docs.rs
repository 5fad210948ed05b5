//! The documents that are made from the code say what the code says. `GODEL_BLESS=1` writes them anew.

use std::path::Path;

use crate::godel::run;

/// The document `name` must be `text`.
fn is_current(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    if std::env::var_os("GODEL_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(written == text, "docs/{name} is not what the code says: run this test with GODEL_BLESS=1");
}

#[test]
fn generated_documents_are_current() {
    let reference = run(&["config", "reference"], &[]);
    is_current("configuration.md", &String::from_utf8_lossy(&reference.stdout));
    let lifecycle = format!(
        "# Life of a unit\n\n\
         Made from `core::lifecycle`, `core::rows` and `core::admission::defaults`; do not edit.\n\n\
         A unit's phase is derived from its record, its running units and what the schedulers say; it is never stored. \
         These are the only changes of it.\n\n{}\n\
         ## Life of a running unit\n\n\
         It is Bound by the binder. Then its agent reports, and these are the only reports of the current incarnation \
         that change anything; `restarts` compares the report's count with the recorded one. What was sent away, or \
         stopped for want of contact, becomes Pending as its next incarnation.\n\n{}\n\
         ## Defaults by workload class\n\n\
         What a submission leaves out is filled in from this table; the answer lists each default applied. \
         *Without contact* says what its agent does after `stop_after_disconnect` (by default 5 s before a lost \
         node's grace is over).\n\n{}",
        godel_domain::lifecycle::render_transitions(),
        godel_domain::running_units::render_transitions(),
        godel_rules::admission::defaults::render(),
    );
    is_current("lifecycle.md", &lifecycle);
}
