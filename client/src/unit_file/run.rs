//! What a replica runs: the keys of a template for it, and the flags.

use clap::Args;
use godel_base::{duration, quantity, resources::MEMORY};
use godel_proto::v1;

use super::{
    flags::once,
    notation::{InFile, Notation},
    pair,
    read::{bytes, octal},
    yaml_out::Yaml,
};

impl InFile for v1::RunSpec {
    fn visit(&mut self, file: &mut impl Notation) {
        // A new field breaks the build here: say how a file has it.
        let Self {
            command,
            env,
            simulated_duration_ms,
            simulated_exit_code,
            stop_grace_ms,
            eviction_notice_ms,
            checkpoint_every_ms,
            await_command_ms,
            working_directory,
            user,
            umask,
            image,
            volumes,
        } = self;
        file.text("image", image);
        file.texts("command", command);
        file.texts_by_key("env", env);
        file.text("working_directory", working_directory);
        file.text("user", user);
        file.scalar("umask", umask, octal, |umask| Yaml::plain(format!("{umask:#o}")));
        file.duration_above_zero("stop_grace", stop_grace_ms, u32::MAX);
        file.duration_above_zero("eviction_notice", eviction_notice_ms, u32::MAX);
        file.duration("checkpoint_every", checkpoint_every_ms);
        file.duration("await_command", await_command_ms);
        file.messages("volumes", volumes, &v1::Volume::default());
        let mut simulated =
            Some(SimulatedRun { duration_ms: *simulated_duration_ms, exit_code: *simulated_exit_code });
        file.inside_unless_empty("simulated", &mut simulated);
        let SimulatedRun { duration_ms, exit_code } = simulated.unwrap_or_default();
        (*simulated_duration_ms, *simulated_exit_code) = (duration_ms, exit_code);
    }
}

/// A run that is simulated.
#[derive(Clone, Default, PartialEq)]
struct SimulatedRun {
    duration_ms: Option<u64>,
    exit_code: i32,
}

impl InFile for SimulatedRun {
    fn visit(&mut self, file: &mut impl Notation) {
        let Self { duration_ms, exit_code } = self;
        file.duration("duration", duration_ms);
        file.above_zero("exit_code", exit_code);
    }
}

impl InFile for v1::Volume {
    fn visit(&mut self, file: &mut impl Notation) {
        let Self { name, bytes: size, path } = self;
        file.text("name", name);
        let mut given = Some(*size);
        let amount = |size: u64| i64::try_from(size).unwrap_or(i64::MAX);
        file.scalar("size", &mut given, bytes, |size| Yaml::plain(quantity::show(MEMORY, amount(*size))));
        *size = given.unwrap_or_default();
        file.text("path", path);
    }
}

/// Flags of `godel unit submit` for what each replica runs, beside its command.
#[derive(Clone, Debug, Args)]
pub struct RunFlags {
    /// Environment of the program, as `MODE=live`.
    #[arg(long, requires = "named", value_name = "NAME=VALUE", value_parser = pair)]
    pub env: Vec<(String, String)>,
    /// Time between the stop request and the kill. Default 0s.
    #[arg(long, requires = "named", value_parser = duration::parse_ms)]
    pub stop_grace: Option<u64>,
    /// Time between an eviction by preemption or by the rescheduler and the stop request, at most 5m. Default 0s.
    #[arg(long, requires = "named", value_parser = duration::parse_ms)]
    pub eviction_notice: Option<u64>,
    /// The program saves its work this often, counted from its start, 1s to 30d: what a move of a replica costs depends on it.
    #[arg(long, requires = "named", value_parser = duration::parse_ms)]
    pub checkpoint_every: Option<u64>,
    /// The command comes later, as the one of a YARN container does; without one after this time a replica fails.
    #[arg(long, requires = "named", value_parser = duration::parse_ms)]
    pub await_command: Option<u64>,
    /// Image of the container in which the program runs, as `NAME:TAG`; without a command the image says what runs.
    #[arg(long, requires = "named", value_name = "IMAGE")]
    pub image: Option<String>,
    /// Directory that the node of a replica keeps for it, as `data=10Gi`, or `data=10Gi:/var/lib/db` with the path at which
    /// the program finds it; with an image the path is required. Give the flag once for each volume.
    #[arg(long = "volume", requires = "name", value_name = "NAME=SIZE[:PATH]", value_parser = pair)]
    pub volumes: Vec<(String, String)>,
    /// Working directory of the program on its node, an absolute path. Default `/`.
    #[arg(long, requires = "named", value_name = "DIR")]
    pub working_directory: Option<String>,
    /// User that the program runs as, by name or number, on nodes whose agent runs as root. Default: the user of the agent.
    #[arg(long, requires = "named", value_name = "USER")]
    pub user: Option<String>,
    /// Bits that files made by the program do not get, in octal digits. Default 022.
    #[arg(long, requires = "named", value_name = "BITS", value_parser = octal)]
    pub umask: Option<u32>,
    /// Duration of a simulated run. Default: until stopped.
    #[arg(long, requires = "named", value_parser = duration::parse_ms)]
    pub duration: Option<u64>,
    /// Exit code of a simulated run. Default 0.
    #[arg(long, requires = "named", allow_negative_numbers = true)]
    pub exit_code: Option<i32>,
}

impl RunFlags {
    pub(super) fn run_spec(&self, command: &[String], wrong: &mut Vec<String>) -> v1::RunSpec {
        let mut volumes = Vec::with_capacity(self.volumes.len());
        for (name, text) in &self.volumes {
            let (size, path) = text.split_once(':').unwrap_or((text, ""));
            match bytes(size) {
                Ok(bytes) => volumes.push(v1::Volume { name: name.clone(), bytes, path: path.to_owned() }),
                Err(error) => wrong.push(format!("--volume {name}: {error}")),
            }
        }
        v1::RunSpec {
            command: command.to_vec(),
            env: once("--env", &self.env, wrong),
            simulated_duration_ms: self.duration,
            simulated_exit_code: self.exit_code.unwrap_or_default(),
            stop_grace_ms: u32::try_from(self.stop_grace.unwrap_or_default()).unwrap_or(u32::MAX),
            eviction_notice_ms: u32::try_from(self.eviction_notice.unwrap_or_default()).unwrap_or(u32::MAX),
            checkpoint_every_ms: self.checkpoint_every,
            await_command_ms: self.await_command,
            working_directory: self.working_directory.clone().unwrap_or_default(),
            user: self.user.clone().unwrap_or_default(),
            umask: self.umask,
            image: self.image.clone().unwrap_or_default(),
            volumes,
        }
    }
}
