//! What devices and ports say about themselves.

use adverb_types::GidType;
use adverb_verbs::{ErrorKind, LinkLayer, PortState};

use super::fixture::{Check, Failure, Fixture, choose_gid, ensure, refused, same};
use super::{Case, Outcome, case};

pub(super) const CASES: &[Case] = &[
    case!(
        devices_are_listed,
        "the device is in the list, once",
        "ibv_get_device_list(3)"
    ),
    case!(
        an_unknown_device_is_refused,
        "opening a name that is not there names those that are",
        "adverb_verbs::Provider::open"
    ),
    case!(
        limits_are_usable,
        "the device has room for at least what one small connection takes",
        "ibv_query_device(3)"
    ),
    case!(port_is_active, "port 1 is ACTIVE", "ibv_query_port(3)"),
    case!(
        port_mtu_is_within_its_maximum,
        "the active MTU is not above what the port can do",
        "ibv_query_port(3)"
    ),
    case!(
        port_numbers_outside_are_refused,
        "ports 0 and one above the last are refused",
        "ibv_query_port(3)"
    ),
    case!(
        gid_table_has_a_rocev2_entry,
        "an entry of type RoCE v2 is found by value, whatever its index",
        "ibv_query_gid_table(3); GID 0 is link-local on rxe"
    ),
    case!(
        async_events_are_not_made_up,
        "a device that was just opened has no event about queue pairs or itself",
        "ibv_get_async_event(3)"
    ),
];

fn devices_are_listed(f: &Fixture<'_>) -> Check {
    let devices = f.provider.devices()?;
    let ours = devices.iter().filter(|info| info.name == f.device_name());
    same("entries of this name", ours.count(), 1)?;
    same("name", f.open()?.info().name.as_str(), f.device_name())?;
    Ok(Outcome::Passed)
}

fn an_unknown_device_is_refused(f: &Fixture<'_>) -> Check {
    let error = refused("opening no-such-device", f.provider.open("no-such-device"))?;
    match &error.kind {
        ErrorKind::NoSuchDevice { name, available } => {
            same("name", name.as_str(), "no-such-device")?;
            ensure(available.iter().any(|name| name == f.device_name()), || {
                format!("the device is not among those named: {available:?}")
            })?;
            Ok(Outcome::Passed)
        }
        _ => Err(Failure::new(format!("another error: {error}"))),
    }
}

fn limits_are_usable(f: &Fixture<'_>) -> Check {
    let device = f.open()?;
    let attr = device.attr();
    for (what, value, least) in [
        ("ports", u64::from(attr.phys_port_cnt), 1),
        ("max_qp", attr.max_qp.into(), 2),
        ("max_qp_wr", attr.max_qp_wr.into(), 64),
        ("max_sge", attr.max_sge.into(), 2),
        ("max_cq", attr.max_cq.into(), 4),
        ("max_cqe", attr.max_cqe.into(), 255),
        ("max_mr", attr.max_mr.into(), 2),
        ("max_mr_size", attr.max_mr_size, 1 << 20),
        ("max_qp_rd_atom", attr.max_qp_rd_atom.into(), 1),
        ("max_qp_init_rd_atom", attr.max_qp_init_rd_atom.into(), 1),
        ("num_comp_vectors", device.num_comp_vectors().into(), 1),
    ] {
        ensure(value >= least, || format!("{what} is {value}, less than {least}"))?;
    }
    Ok(Outcome::Passed)
}

fn port_is_active(f: &Fixture<'_>) -> Check {
    same("port state", f.open()?.port(1)?.state, PortState::Active)?;
    Ok(Outcome::Passed)
}

fn port_mtu_is_within_its_maximum(f: &Fixture<'_>) -> Check {
    let port = f.open()?.port(1)?;
    ensure(port.active_mtu <= port.max_mtu, || format!("{port:?}"))?;
    ensure(port.max_msg_sz >= 1 << 20, || format!("{port:?}"))?;
    Ok(Outcome::Passed)
}

fn port_numbers_outside_are_refused(f: &Fixture<'_>) -> Check {
    let device = f.open()?;
    for port in [0, device.attr().phys_port_cnt.saturating_add(1)] {
        refused(&format!("port {port}"), device.port(port))?;
        let entries = device.gid_table(port).unwrap_or_default();
        same("GIDs of a port that is not there", entries, vec![])?;
    }
    Ok(Outcome::Passed)
}

fn gid_table_has_a_rocev2_entry(f: &Fixture<'_>) -> Check {
    let device = f.open()?;
    let table = device.gid_table(1)?;
    ensure(table.is_sorted_by(|a, b| a.index < b.index), || {
        format!("indices do not rise: {table:?}")
    })?;
    ensure(table.iter().all(|entry| !entry.gid.is_zero()), || {
        format!("an unused entry: {table:?}")
    })?;
    if device.port(1)?.link_layer == LinkLayer::InfiniBand {
        return Ok(Outcome::Skipped("an InfiniBand port has no RoCE GIDs".into()));
    }
    match choose_gid(table) {
        Some(entry) if entry.gid_type == GidType::RoceV2 => Ok(Outcome::Passed),
        other => Err(Failure::new(format!("no RoCE v2 entry; the best is {other:?}"))),
    }
}

fn async_events_are_not_made_up(f: &Fixture<'_>) -> Check {
    use adverb_verbs::EventSource;
    let device = f.open()?;
    while let Some(event) = device.next_async_event()? {
        let of_port = matches!(event.source, EventSource::Port(_));
        ensure(of_port, || format!("{event}"))?;
    }
    Ok(Outcome::Passed)
}
