//! The generated documents match the code. `GODEL_BLESS=1` rewrites them.

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
         Generated from `core::lifecycle`, `core::running_units` and `core::admission::defaults`; do not edit.\n\n\
         The phase of a unit is derived from its record, its running units and the reports of schedulers; it is never stored. \
         The table lists all transitions.\n\n{}\n\
         ## Life of a running unit\n\n\
         The binder makes a running unit Bound. Then its agent reports. The table lists all reports of the current \
         incarnation that change the record; `restarts` compares the report's count with the recorded one. A running \
         unit that was evicted, or stopped after a loss of contact, becomes Pending as its next incarnation.\n\n{}\n\
         ## Defaults by workload class\n\n\
         Values that a submission omits are filled in from this table; the answer lists each default applied. \
         *Without contact* is what the agent does after `stop_after_disconnect` (by default 5 s before the end of a \
         lost node's grace).\n\n{}",
        godel_domain::lifecycle::render_transitions(),
        godel_domain::running_units::render_transitions(),
        godel_rules::admission::defaults::render(),
    );
    is_current("lifecycle.md", &lifecycle);
}
