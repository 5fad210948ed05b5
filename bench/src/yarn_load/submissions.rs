//! `godel bench yarn-submissions`: applications of YARN at a steady rate, whatever became of those before (an open loop).
//!
//! The master of each is played here: it registers, asks for one container, and says goodbye as soon as it has heard of it. Latency
//! counts from the moment at which an application was due to be submitted. All of them must be seen on state's watch: their units, a container each, its
//! end, and a record that says FINISHED and SUCCEEDED; otherwise there are no figures.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use clap::Args as ClapArgs;
use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::Format,
    replay::Latency,
    usage,
};
use serde::Serialize;

use super::{
    YarnStage,
    master::{CallPause, Master, ask},
    watched::{Progress, WatchedApplications},
};
use crate::{
    cases::per,
    cluster::{self, Layout},
    once::{Figures, Once},
    processes,
    report::{by_process, count, joined, latencies},
};

/// The queue of all of them.
const QUEUE: &str = "default";
/// Less of the rate was not offered in time, or not taken, per cent.
const RATE_MIN_PERCENT: f64 = 99.0;
/// In a shorter run, seconds, the rate is not judged: how late the last one is taken, on a busy machine, would count like many that were not.
const RATE_JUDGED_S: u32 = 60;

/// `godel bench yarn-submissions`.
#[derive(Clone, Debug, ClapArgs)]
#[command(mut_arg("nodes", |nodes| nodes.default_value("100")))]
pub struct YarnSubmissionsArgs {
    /// Applications submitted per second.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Minutes of submissions.
    #[arg(long, default_value_t = 10.0, value_parser = minutes)]
    minutes: f64,
    #[command(flatten)]
    once: Once,
}

/// What is reported; field names are stable.
#[derive(Clone, Debug, Serialize)]
struct SubmissionFigures {
    workload: &'static str,
    nodes: usize,
    offered_per_s: u32,
    minutes: f64,
    submitted: usize,
    /// Submissions whose records were durable, from the first one that was due to the last answer.
    achieved_per_s: f64,
    /// From the moment at which an application was due.
    submission_ms: Latency,
    container_ms: Latency,
    finished_ms: Latency,
    /// As the watch shows.
    units_seen: usize,
    containers_seen: u64,
    finished_seen: usize,
    lost: usize,
    cpu_s: BTreeMap<String, f64>,
    rss_start_mib: BTreeMap<String, f64>,
    rss_end_mib: BTreeMap<String, f64>,
    load_average: f64,
    audit: bool,
    audit_s: f64,
}

/// Times of one application since the watch began, as its master knows them.
struct PlayedApplication {
    application: String,
    due: Duration,
    submitted: Duration,
    container: Duration,
}

pub(crate) async fn run(wanted: YarnSubmissionsArgs, format: Format) -> Result<(), Failure> {
    wanted.once.run(format, "yarn-submissions", async |layout| measure(&wanted, layout).await).await
}

async fn measure(wanted: &YarnSubmissionsArgs, layout: Layout) -> Result<SubmissionFigures, Failure> {
    let [shape] = wanted.once.shapes();
    let mut stage = YarnStage::start(&layout, &shape).await?;
    let (load_average, cpu_before, rss_start_mib) = (usage::load_average(), stage.cpu(), stage.memory());
    let n = wanted.n_applications();
    let (client, watched) = (stage.client.clone(), Arc::clone(&stage.watched));
    let began = watched.now();
    let parts = (0..n).map(|number| {
        let due = Duration::from_secs(number.into()) / wanted.rate;
        (due, play(client.clone(), Arc::clone(&watched), number, began + due))
    });
    let n_parts = usize::try_from(n).unwrap_or(usize::MAX);
    let played = stage.play(n_parts, parts).await?;
    let (rss_end_mib, cpu_s) = (stage.memory(), processes::used(&cpu_before, &stage.cpu()));
    let progress = nothing_is_lost(&watched, &played)?;
    let last = played.iter().map(|one| one.submitted).max().unwrap_or_default();
    let achieved_per_s = per(count(played.len()), last.saturating_sub(began).as_secs_f64());
    if achieved_per_s * 100.0 < f64::from(wanted.rate) * RATE_MIN_PERCENT && n >= RATE_JUDGED_S * wanted.rate
    {
        let text = format!("{achieved_per_s:.1} applications a second were taken instead of {}", wanted.rate);
        return Err(Failure::new(Code::Busy, text));
    }
    let audit_s = cluster::audited(&stage.client).await?;
    let since_due = |at: &dyn Fn(&PlayedApplication) -> Option<Duration>| {
        let of = |one: &PlayedApplication| Some(at(one)?.saturating_sub(one.due));
        Latency::of(played.iter().filter_map(of).collect())
    };
    Ok(SubmissionFigures {
        workload: "yarn-submissions",
        nodes: layout.n_nodes,
        offered_per_s: wanted.rate,
        minutes: wanted.minutes,
        submitted: played.len(),
        achieved_per_s,
        submission_ms: since_due(&|one| Some(one.submitted)),
        container_ms: since_due(&|one| Some(one.container)),
        finished_ms: since_due(&|one| watched.seen(&one.application).over),
        units_seen: progress.n_units,
        containers_seen: progress.n_bound,
        finished_seen: progress.n_succeeded,
        // Otherwise there are no figures.
        lost: 0,
        cpu_s,
        rss_start_mib,
        rss_end_mib,
        load_average,
        audit: true,
        audit_s,
    })
}

impl YarnSubmissionsArgs {
    /// Below 2^32, since both factors are bounded.
    fn n_applications(&self) -> u32 {
        (f64::from(self.rate) * self.minutes * 60.0).ceil().max(1.0) as u32
    }
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes = text.parse().ok().filter(|minutes| (0.001..=1_440.0).contains(minutes));
    minutes.ok_or_else(|| format!("`{text}` is not a number of minutes from 0.001 to 1440"))
}

/// The master of one application, from its submission to its goodbye.
async fn play(
    client: Client,
    watched: Arc<WatchedApplications>,
    number: u32,
    due: Duration,
) -> Result<PlayedApplication, Failure> {
    let mut master = Master::submit(&client, &watched, &format!("a{number}"), QUEUE).await?;
    let submitted = watched.now();
    master.register().await?;
    let mut answer = master.allocate(vec![ask(0, 1)], Vec::new()).await?;
    let (mut soon, mut later) = (CallPause::default(), CallPause::default());
    while answer.allocated.is_empty() {
        let limit = if master.may_hear() { soon.next() } else { later.next() };
        master.rung(limit).await;
        if master.may_hear() {
            answer = master.allocate(Vec::new(), Vec::new()).await?;
        }
    }
    let container = watched.now();
    master.finish().await?;
    Ok(PlayedApplication { application: master.application().to_owned(), due, submitted, container })
}

/// Everything that was submitted was seen, and has come to its end.
fn nothing_is_lost(watched: &WatchedApplications, played: &[PlayedApplication]) -> Result<Progress, Failure> {
    let is_whole = |one: &&PlayedApplication| {
        let seen = watched.seen(&one.application);
        seen.has_unit && seen.has_succeeded && (seen.n_bound, seen.n_ended) == (1, 1)
    };
    let progress = watched.progress();
    let n_lost = played.len() - played.iter().filter(is_whole).count();
    let n_seen = (progress.n_units, progress.n_succeeded, progress.n_bound);
    let n = played.len();
    if n_lost == 0 && n_seen == (n, n, u64::try_from(n).unwrap_or(u64::MAX)) {
        return Ok(progress);
    }
    let first = played.iter().find(|one| !is_whole(one)).map_or("", |one| &one.application);
    let text = format!(
        "{n_lost} of {n} applications are not whole, as {first}: {:?}; the watch shows {progress:?}",
        watched.seen(first)
    );
    Err(Failure::failed(text))
}

impl Figures for SubmissionFigures {
    fn text(&self) -> String {
        let Self { offered_per_s, minutes, submitted, lost, units_seen, containers_seen, .. } = self;
        let each = |seconds: f64| seconds * 1e6 / count(*submitted);
        let cpu = self.cpu_s.iter().map(|(name, seconds)| format!("{name} {:.0}", each(*seconds)));
        format!(
            "offered      {offered_per_s}/s for {minutes} min: {submitted} applications, {:.1}/s taken, lost {lost}\n\
             watch        {units_seen} units, {containers_seen} containers, {} finished\n\
             recorded     {}\n\
             container    {}\n\
             FINISHED     {}\n\
             CPU us each  {}\n\
             first MiB    {}\n\
             last MiB     {}\n\
             load before  {:.2}\n\
             audit        ok in {:.1} s\n",
            self.achieved_per_s,
            self.finished_seen,
            latencies(self.submission_ms),
            latencies(self.container_ms),
            latencies(self.finished_ms),
            joined(cpu),
            by_process(&self.rss_start_mib, 0),
            by_process(&self.rss_end_mib, 0),
            self.load_average,
            self.audit_s,
        )
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: YarnSubmissionsArgs,
    }

    #[test]
    fn the_rate_and_the_time_say_how_many() {
        let wanted =
            |words: &[&str]| Line::try_parse_from([&[""][..], words].concat()).map(|line| line.arguments);
        assert_eq!(wanted(&[]).unwrap().n_applications(), 120_000);
        assert_eq!(wanted(&["--rate", "20", "--minutes", "0.1"]).unwrap().n_applications(), 120);
        assert!(wanted(&["--minutes", "0"]).is_err() && wanted(&["--minutes", "x"]).is_err());
    }
}
