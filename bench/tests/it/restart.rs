//! `godel bench restart` and `godel bench agents` on real processes, small.

use crate::runs::bench;

#[test]
fn a_restart_is_timed_phase_by_phase_and_loses_nothing() {
    let report = bench("restart", &["--running-units", "250", "--replicas", "100"]);
    assert_eq!((&report["nodes"], &report["running_units"]), (&20.into(), &250.into()));
    assert_eq!((&report["audit"], &report["replicas"]), (&true.into(), &100.into()));
    let at = |field: &str| report[field].as_f64().unwrap();
    assert!(0.0 < at("state_s") && at("state_s") < at("submitted_s"), "{report}");
    assert!(at("state_s") < at("first_binding_s"), "{report}");
    // Leases are seen by a look of their own, which may come after the first binding was seen.
    assert!(report["leases_s"]["dispatcher"].as_f64().is_some_and(|granted| granted > 0.0), "{report}");
    for process in ["state", "dispatcher", "binder", "s1"] {
        for field in ["cpu_s", "rss_mib", "rss_then_mib", "rss_before_mib"] {
            assert!(report[field][process].as_f64().is_some_and(|held| held >= 0.0), "{field}: {report}");
        }
        assert!(report["rss_mib"][process].as_f64().unwrap() > 0.0, "{process}: {report}");
    }
}

#[test]
fn idle_agents_are_measured_over_a_window() {
    let report = bench("agents", &["--seconds", "1"]);
    assert_eq!((&report["nodes"], &report["sessions"]), (&20.into(), &20.into()));
    assert_eq!(report["audit"], true);
    assert!(report["seconds"].as_f64().unwrap() >= 1.0, "{report}");
    for field in ["state_cpu_per_cent", "agents_cpu_per_cent", "bytes_per_session", "bytes_written"] {
        assert!(report[field].as_f64().is_some_and(|figure| figure >= 0.0), "{field}: {report}");
    }
    assert!(report["state_rss_mib"].as_f64().unwrap() > 0.0, "{report}");
}
