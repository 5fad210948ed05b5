//! One configuration for all parts: `godel up` uses it whole, `godel serve` and `godel agent` their section.

use godel_kit::config::{Loader, TelemetryConfig};

use crate::args::Layers;
use godel_client::exit::{Code, Failure};

godel_kit::section! {
    /// Every part of the control plane.
    pub struct Root {
    }
    sections {
        /// Logs of the process.
        pub telemetry: TelemetryConfig,
        /// The state service.
        pub state: godel_state::Config,
        /// The dispatcher.
        pub dispatcher: godel_dispatcher::Config,
        /// The scheduler.
        pub scheduler: godel_scheduler::Config,
        /// The binder.
        pub binder: godel_binder::Config,
        /// The agent.
        pub agent: godel_agent::Config,
        /// The YARN adapter.
        pub yarn: godel_yarn::Config,
        /// The rescheduler.
        pub rescheduler: godel_rescheduler::Config,
    }
}

/// Loads the layers; `flags` win over everything.
///
/// # Errors
/// A file, key or value is wrong.
pub fn load(layers: &Layers, flags: &[(&str, Option<String>)]) -> Result<Root, Failure> {
    let mut loader = Loader::new();
    for file in &layers.files {
        loader = loader.file(file);
    }
    loader = loader.process_env();
    for (key, value) in &layers.set {
        loader = loader.set(key, value);
    }
    for (key, value) in flags {
        if let Some(value) = value {
            loader = loader.set(*key, value);
        }
    }
    loader
        .load_checked(|root: &Root| {
            root.scheduler.check()?;
            root.rescheduler.check()
        })
        .map_err(|error| Failure::chain(Code::Usage, &error).hint("`godel config reference` lists every key"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_win_and_unknown_keys_are_refused() {
        let layers = Layers {
            files: Vec::new(),
            set: vec![
                ("scheduler.surplus".to_owned(), "7".to_owned()),
                ("agent.speed".to_owned(), "2".to_owned()),
            ],
        };
        let root =
            load(&layers, &[("scheduler.surplus", Some("9".to_owned())), ("agent.speed", None)]).unwrap();
        assert_eq!((root.scheduler.surplus, root.agent.speed), (9, 2.0));
        let wrong =
            Layers { set: vec![("scheduler.surplsu".to_owned(), "7".to_owned())], ..Layers::default() };
        let failure = load(&wrong, &[]).unwrap_err();
        assert_eq!(failure.code, Code::Usage);
        assert!(failure.message.contains("did you mean `scheduler.surplus`?"), "{failure}");
    }

    #[test]
    fn a_profile_that_does_not_exist_is_refused_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = ["first.yaml", "second.toml"].map(|name| dir.path().join(name));
        std::fs::write(&first, "scheduler:\n  profile_of:\n    class: {service: fast}\n").unwrap();
        let layers = |files: &[&std::path::PathBuf]| Layers {
            files: files.iter().copied().cloned().collect(),
            set: Vec::new(),
        };
        let failure = load(&layers(&[&first]), &[]).unwrap_err();
        let said = "first.yaml:3: `scheduler.profile_of.class.service`: there is no profile `fast`";
        assert!(failure.message.contains(said), "{failure}");
        // It may be in another file.
        std::fs::write(&second, "[scheduler.profiles.fast]\nscores = [{name = 'spread'}]\n").unwrap();
        load(&layers(&[&first, &second]), &[]).unwrap();
        std::fs::write(&second, "[scheduler]\nsurplus = 3\nsurplsu = 3\n").unwrap();
        let failure = load(&layers(&[&first, &second]), &[]).unwrap_err();
        assert!(failure.message.contains("second.toml:3"), "{failure}");
    }

    #[test]
    fn a_file_covers_all_parts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("godel.toml");
        std::fs::write(&path, "[scheduler]\nsurplus = 3\n[state]\nname = \"a\"\n").unwrap();
        let root = load(&Layers { files: vec![path], set: Vec::new() }, &[]).unwrap();
        assert_eq!((root.scheduler.surplus, root.state.name.as_str()), (3, "a"));
    }
}
