//! What becomes of every property of a folder of configuration files.

use crate::{
    configuration::HadoopConfiguration,
    findings::Fidelity::{Approximated, Mapped, Unsupported},
    findings::{Fidelity, PropertyFinding},
    import::{ImportOptions, QueueImport, import_queues},
    properties::{OF_SITE, PREFIX, look_up},
};

/// Setting that names the scheduler.
const SCHEDULER: &str = "yarn.resourcemanager.scheduler.class";

/// The queues of a configuration, with findings for the properties of YARN itself besides those of its queues.
#[must_use]
pub fn preflight(configuration: &HadoopConfiguration, options: &ImportOptions) -> QueueImport {
    let mut import = import_queues(configuration, options);
    let names = configuration.names().filter(|name| name.starts_with("yarn.") && !name.starts_with(PREFIX));
    import.findings.extend(names.map(|name| {
        let value = configuration.get(name).unwrap_or_default();
        let (fidelity, effect) = of_site(name, &value);
        PropertyFinding { property: name.to_owned(), value, fidelity, effect: effect.to_owned() }
    }));
    import.findings.sort();
    import
}

fn of_site(name: &str, value: &str) -> (Fidelity, &'static str) {
    match name {
        "yarn.acl.enable" if value == "true" => (
            Approximated,
            "queues ask for the owner whom a unit names; the adapter asks who changes and sees applications if \
                 `yarn.conf_dir` names this folder, and godel's own commands ask nobody",
        ),
        "yarn.acl.enable" => (Mapped, "nobody is asked who calls"),
        "yarn.admin.acl" => (
            Approximated,
            "the adapter asks who administers it if `yarn.conf_dir` names this folder; whoever reaches the control plane may \
             administer godel",
        ),
        "yarn.resourcemanager.application-tag-based-placement.enable"
        | "yarn.resourcemanager.application-tag-based-placement.username.whitelist" => {
            (Unsupported, "tags of an application do not choose its queue")
        }
        SCHEDULER if value.ends_with(".CapacityScheduler") => {
            (Mapped, "its queues are imported from capacity-scheduler.xml")
        }
        SCHEDULER => (
            Unsupported,
            "queues are imported from capacity-scheduler.xml only, no other scheduler's file is read",
        ),
        "yarn.resourcemanager.scheduler.monitor.enable" if value == "true" => {
            (Mapped, "queues reclaim their guarantees by preemption")
        }
        "yarn.resourcemanager.scheduler.monitor.enable" => (
            Unsupported,
            "queues always reclaim their guarantees by preemption; `godel admin pause preemption` stops that",
        ),
        _ if name.starts_with("yarn.resourcemanager.monitor.capacity.preemption.") => (
            Unsupported,
            "preemption has no rounds and limits of its own; `min_run` of a unit and disruption budgets protect units",
        ),
        _ => look_up(OF_SITE, name).unwrap_or((Unsupported, "godel does not know this property")),
    }
}
