//! `godel yarn`: applications of YARN; the configuration of a YARN cluster, and what godel makes of it.

mod apps;

use std::{collections::BTreeMap, path::Path};

use godel_client::{
    access::Access,
    client::Client,
    exit::Failure,
    output::{self, Format, View, ViewColumn, count},
    unit_file::{self, parse_amount},
    view,
};
use godel_core_yarn::{
    Fidelity, HadoopConfiguration, ImportOptions, PropertyFinding, QueueImport, import_queues, preflight,
};
use godel_proto::v1;
use godel_wire::to_proto;

use super::{apply, unit::read};
use crate::args::yarn::{Yarn, YarnImportArgs};

/// The file without which there is nothing to import.
const SCHEDULER_FILE: &str = "capacity-scheduler.xml";
/// Files of a directory in the order in which YARN reads them.
const FILES: [&str; 2] = ["yarn-site.xml", SCHEDULER_FILE];
const DOCS: &str = "docs/yarn.md says what is imported and how";

view! {
    /// What becomes of one property, as JSON.
    struct FindingView from (finding: &PropertyFinding) {
        property: String = finding.property.clone(),
        value: String = finding.value.clone(),
        /// `mapped`, `approximated` or `unsupported`.
        outcome: &'static str = finding.fidelity.name(),
        effect: String = finding.effect.clone(),
    }
}

impl View for FindingView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("PROPERTY", |view| view.property.clone()),
        ("VALUE", |view| view.value.clone()),
        ("OUTCOME", |view| view.outcome.to_owned()),
        ("EFFECT", |view| view.effect.clone()),
    ];
}

pub(super) async fn run(access: &Access, verb: Yarn, format: Format) -> Result<(), Failure> {
    match verb {
        Yarn::App(verb) => apps::run(&Client::new(access)?, verb, format).await,
        Yarn::Queue(verb) => apps::run_queue(&Client::new(access)?, &verb, format).await,
        Yarn::ImportQueues { queues, dry_run, simple_users } => {
            let (configuration, options) = given(access, &queues).await?;
            let import = import_queues(&configuration, &options);
            let import = if simple_users { import.with_simple_users() } else { import };
            refused(&import).map_err(|failure| failure.hint("nothing was changed"))?;
            let records: Vec<v1::Queue> = import.queues.iter().map(to_proto::queue).collect();
            if dry_run {
                output::print_raw(&unit_file::queues_to_file(&records))?;
            } else {
                let placed = records.into_iter().zip(&import.queues);
                let placed = placed.map(|(record, spec)| {
                    (format!("{} (queue {})", queues.conf.display(), spec.name), record)
                });
                apply::put_queues(access, placed.collect(), format).await?;
            }
            output::say(format!("{}; `godel yarn preflight` shows them", counts(&import)));
            Ok(())
        }
        Yarn::Preflight { queues } => {
            let (configuration, options) = given(access, &queues).await?;
            let import = preflight(&configuration, &options);
            output::print_views::<FindingView, _>(format, &import.findings, "properties")?;
            output::say(counts(&import));
            refused(&import)
        }
    }
}

/// The files, and what they are imported for.
async fn given(
    access: &Access,
    queues: &YarnImportArgs,
) -> Result<(HadoopConfiguration, ImportOptions), Failure> {
    let configuration = load(&queues.conf)?;
    let total = match total(&queues.total)? {
        total if total.is_empty() => capacity(access).await?,
        total => total,
    };
    Ok((configuration, ImportOptions { under: queues.under.clone(), total }))
}

fn load(conf: &Path) -> Result<HadoopConfiguration, Failure> {
    let files = if conf.is_dir() {
        if !conf.join(SCHEDULER_FILE).exists() {
            let said = format!(
                "{} has no {SCHEDULER_FILE}: --conf names the directory of YARN's configuration",
                conf.display()
            );
            return Err(Failure::usage(said));
        }
        FILES.iter().map(|name| conf.join(name)).filter(|path| path.exists()).collect()
    } else {
        vec![conf.to_owned()]
    };
    let mut configuration = HadoopConfiguration::default();
    for file in files {
        let text = read(&file)?;
        let read = configuration.read(&file.display().to_string(), &text);
        read.map_err(|bad| Failure::usage(bad.to_string()))?;
    }
    Ok(configuration)
}

fn total(words: &[String]) -> Result<BTreeMap<String, i64>, Failure> {
    let pair = |word: &String| {
        let (name, text) = word
            .split_once('=')
            .ok_or_else(|| Failure::usage(format!("--total: `{word}` is not RESOURCE=QUANTITY")))?;
        let amount =
            parse_amount(name, text).map_err(|bad| Failure::usage(format!("--total {name}: {bad}")))?;
        Ok((name.to_owned(), amount))
    };
    words.iter().map(pair).collect()
}

/// What all nodes have.
async fn capacity(access: &Access) -> Result<BTreeMap<String, i64>, Failure> {
    let hint = "`--total cpu=100,memory=400Gi` says what YARN's queues have together";
    let with_hint = |failure: Failure| {
        let known = failure.hint.as_ref().map(|known| format!("{known}\n")).unwrap_or_default();
        failure.hint(known + hint)
    };
    let status = Client::new(access)?.dispatcher_status().await.map_err(with_hint)?;
    let capacity = status.capacity.unwrap_or_default().amounts;
    if capacity.is_empty() {
        return Err(Failure::failed("the cluster has no nodes whose capacity could be shared out").hint(hint));
    }
    Ok(capacity.into_iter().collect())
}

fn refused(import: &QueueImport) -> Result<(), Failure> {
    if import.mistakes.is_empty() {
        return Ok(());
    }
    Err(Failure::usage(import.mistakes.join("\n")).hint(DOCS))
}

fn counts(import: &QueueImport) -> String {
    let n = |fidelity| import.findings.iter().filter(|finding| finding.fidelity == fidelity).count();
    let (mapped, approximated, unsupported) =
        (n(Fidelity::Mapped), n(Fidelity::Approximated), n(Fidelity::Unsupported));
    format!(
        "{}: {mapped} mapped, {approximated} approximated, {unsupported} unsupported",
        count(import.findings.len(), "property")
    )
}
