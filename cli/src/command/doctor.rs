//! `godel doctor`: who can reach the cluster, and what proves who calls.

use godel_client::{
    client::Client,
    context::ContextFile,
    doctor::{self, ClusterFacts, ContextFacts, Diagnosis, LocalPlaces},
    exit::Failure,
    output::{self, Format, Paint},
};

use super::context;
use crate::args::DoctorArgs;

/// Shows what there is to know of this machine even where state does not answer.
pub(super) async fn run(
    wanted: DoctorArgs,
    address: Option<String>,
    context: Option<&str>,
    format: Format,
) -> Result<(), Failure> {
    let DoctorArgs { data_dir, identity_dir } = wanted;
    let asked = ask(address.clone(), context).await;
    // As it is after its renewal. A file that cannot be read is among those that are looked at, or is why nobody could be asked.
    let used = context::used_context(address.as_deref(), context).ok().flatten();
    let used = used.map(|(_, name, context)| ContextFacts {
        name,
        address: context.address,
        token_ends_ms: context.token.map(|token| token.expires_ms),
    });
    let contexts = ContextFile::of_environment().ok();
    let here = doctor::look_here(LocalPlaces { contexts, context: used, data_dir, identity_dir })?;
    let (cluster, failure) = match asked {
        Ok(cluster) => (Some(cluster), None),
        Err(failure) => (None, Some(failure)),
    };
    let diagnosis = Diagnosis::new(here, cluster);
    output::show(format, &diagnosis.view(), || diagnosis.text(Paint::stdout()))?;
    failure.map_or_else(|| diagnosis.verdict(), Err)
}

async fn ask(address: Option<String>, context: Option<&str>) -> Result<ClusterFacts, Failure> {
    let access = context::access(address, context).await?;
    doctor::look_at_cluster(&Client::new(access)?).await
}
