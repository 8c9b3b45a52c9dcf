# Hosts of one kind: an instance template and a managed instance group; for a TPU slice of several hosts also the
# workload policy that joins them (docs.cloud.google.com/tpu/docs/tpus-and-migs: v5p and later). `maskwright env` says
# what each machine type has (cloud/machines.py); nothing here is derived from names.

locals {
  joined = var.topology != null && var.hosts > 1

  # Secure Boot takes only signed drivers: Container-Optimized OS has signed ones of NVIDIA
  # (docs.cloud.google.com/container-optimized-os/docs/how-to/run-gpus), other images of GPU hosts may not. Whether TPU
  # machines may have it is not documented (examples turn it off), so they are left as Google makes them.
  secure_boot = var.accelerator != "gpu" || strcontains(var.image, "cos-cloud")

  deleted_at_end = var.provisioning_model != "STANDARD" || var.max_run_hours != null
}

resource "google_compute_resource_policy" "topology" {
  count = local.joined ? 1 : 0
  # A policy cannot be changed, nor can a group with hosts get another one. So a new topology is a new policy and group.
  name        = "${var.name}-${var.topology}"
  description = "Joins the hosts of ${var.name} into one slice of ${var.topology}."
  region      = var.region
  workload_policy {
    type                 = "HIGH_THROUGHPUT"
    accelerator_topology = var.topology
  }
  lifecycle {
    create_before_destroy = true
  }
}

resource "google_compute_instance_template" "host" {
  name_prefix          = "${var.name}-"
  description          = "Hosts of ${var.name}."
  instance_description = "Host of ${var.name}."
  machine_type         = var.machine_type
  labels               = var.labels
  can_ip_forward       = false

  disk {
    boot         = true
    auto_delete  = true
    source_image = var.image
    disk_type    = var.boot_disk
    disk_size_gb = 200 # images of containers with CUDA or JAX take tens of GB, unpacked next to packed
    labels       = var.labels
  }
  dynamic "disk" {
    for_each = var.disk == null ? [] : [var.disk]
    content {
      boot        = false
      auto_delete = false
      source      = disk.value.name
      mode        = "READ_ONLY"
      device_name = disk.value.device_name
    }
  }
  # No access_config: no public address.
  network_interface {
    subnetwork = var.subnetwork
    nic_type   = "GVNIC"
  }
  service_account {
    email  = var.service_account
    scopes = ["cloud-platform"] # its roles limit what it may do
  }
  scheduling {
    provisioning_model          = var.provisioning_model
    preemptible                 = var.provisioning_model == "SPOT"
    automatic_restart           = contains(["STANDARD", "RESERVATION_BOUND"], var.provisioning_model)
    on_host_maintenance         = var.accelerator != null || var.provisioning_model != "STANDARD" ? "TERMINATE" : "MIGRATE"
    instance_termination_action = local.deleted_at_end ? "DELETE" : null
    dynamic "max_run_duration" {
      for_each = var.max_run_hours == null ? [] : [var.max_run_hours]
      content {
        seconds = floor(max_run_duration.value * 3600)
      }
    }
  }
  dynamic "reservation_affinity" {
    for_each = var.provisioning_model == "RESERVATION_BOUND" ? [var.reservation] : []
    content {
      type = "SPECIFIC_RESERVATION"
      specific_reservation {
        key    = "compute.googleapis.com/reservation-name"
        values = [reservation_affinity.value]
      }
    }
  }
  # docs.cloud.google.com/compute/docs/instances/create-flex-start-vm: Flex-start takes from no reservation
  dynamic "reservation_affinity" {
    for_each = var.provisioning_model == "FLEX_START" ? [1] : []
    content {
      type = "NO_RESERVATION"
    }
  }
  dynamic "shielded_instance_config" {
    for_each = var.accelerator == "tpu" ? [] : [1]
    content {
      enable_secure_boot          = local.secure_boot
      enable_vtpm                 = true
      enable_integrity_monitoring = true
    }
  }
  metadata = {
    for key, value in merge(var.metadata, {
      maskwright-hosts    = tostring(var.hosts)
      maskwright-topology = var.topology
    }) : key => value if value != null
  }

  lifecycle {
    create_before_destroy = true

    precondition {
      condition     = var.disk == null ? true : contains(var.data_disks, var.disk.type)
      error_message = "${var.machine_type} cannot attach ${try(var.disk.type, "")}: disk.type is one of ${join(", ", var.data_disks)}."
    }
    precondition {
      condition     = var.disk == null ? true : var.disk.seeded
      error_message = "The disk is not seeded yet: hosts can attach it when it is."
    }
    precondition {
      condition     = var.disk == null ? true : var.disk.zone == var.zone
      error_message = "The disk is in ${try(var.disk.zone, "")}: hosts in ${var.zone} cannot attach it."
    }
    precondition {
      condition     = (var.provisioning_model == "RESERVATION_BOUND") == (var.reservation != null)
      error_message = "RESERVATION_BOUND and reservation go together."
    }
    precondition {
      # docs.cloud.google.com/compute/docs/instances/about-flex-start-vms: seven days
      condition     = var.provisioning_model != "FLEX_START" ? true : try(var.max_run_hours > 0 && var.max_run_hours <= 168, false)
      error_message = "FLEX_START needs max_run_hours, up to 168."
    }
  }
}

resource "google_compute_instance_group_manager" "hosts" {
  name               = var.name
  description        = "Hosts of ${var.name}."
  base_instance_name = var.name
  zone               = var.zone
  target_size        = var.hosts
  # There may be no machines for hours (Spot, Flex-start). `env status` and the watcher follow them, not Terraform.
  wait_for_instances = false

  version {
    instance_template = google_compute_instance_template.host.self_link_unique
  }
  dynamic "resource_policies" {
    for_each = google_compute_resource_policy.topology
    content {
      workload_policy = resource_policies.value.self_link
    }
  }
  # All hosts at once or none: documented for Flex-start and reservations
  # (docs.cloud.google.com/compute/docs/instance-groups/about-bulk-mode). A slice of several hosts wants it with every
  # model: without it Google was seen to refuse a group whose policy names a topology ("require BULK mode in target size
  # policy"), and its own TPU node controllers set it so.
  dynamic "target_size_policy" {
    for_each = local.joined || contains(["FLEX_START", "RESERVATION_BOUND"], var.provisioning_model) ? [1] : []
    content {
      mode = "BULK"
    }
  }
  # Terraform replaces the group when hosts have to change, and the watcher when they fail and do not come back by
  # automatic_restart. The group itself does nothing: a slice that got back one of its hosts would still have lost its
  # run, and a host that stopped because it was idle would be started again.
  update_policy {
    type           = "OPPORTUNISTIC"
    minimal_action = "REPLACE"
  }
  instance_lifecycle_policy {
    default_action_on_failure = "DO_NOTHING"
    force_update_on_repair    = "NO"
  }

  lifecycle {
    # Hosts must be gone before their policy, their template and the disk that they hold can go. The policy is not named
    # here: Terraform 1.11 fails on one that has a count of 0 ("no change found"); the topology is in the template too.
    replace_triggered_by = [google_compute_instance_template.host]
  }
}
