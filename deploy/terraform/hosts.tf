# The slice and the group. One module makes both, as each is an instance template and a managed instance group.

locals {
  disk_device   = "shared-pd"
  common_script = file("${path.module}/host/common.sh")

  # For every machine: people come in by OS Login (IAM), never by keys in metadata, and nobody by the serial port.
  locked_down = {
    enable-oslogin         = "TRUE"
    block-project-ssh-keys = "TRUE"
    serial-port-enable     = "FALSE"
    maskwright-environment = var.name
  }

  hosts = { for kind, wanted in { slice = var.slice, group = var.group } : kind => wanted if wanted != null }

  nfs_export = one([for nfs in google_filestore_instance.nfs : "${nfs.networks[0].ip_addresses[0]}:/${var.nfs.share}"])
}

module "hosts" {
  source   = "./modules/hosts"
  for_each = local.hosts

  name               = "${var.name}-${each.key}"
  machine_type       = each.value.machine_type
  topology           = each.value.topology
  hosts              = each.value.hosts
  accelerator        = each.value.accelerator
  boot_disk          = each.value.boot_disk
  data_disks         = each.value.data_disks
  zone               = each.value.zone
  region             = each.value.region
  provisioning_model = each.value.provisioning_model
  reservation        = each.value.reservation
  max_run_hours      = each.value.max_run_hours
  image              = each.value.image
  labels             = var.labels
  subnetwork         = local.subnetworks[each.value.region]
  service_account    = google_service_account.train.email

  disk = !each.value.attach_disk || var.disk == null ? null : {
    name        = google_compute_disk.data[0].name
    type        = google_compute_disk.data[0].type
    zone        = google_compute_disk.data[0].zone
    seeded      = var.disk.seeded
    device_name = local.disk_device
  }

  metadata = merge(local.locked_down, {
    startup-script          = "${local.common_script}${file("${path.module}/host/startup.sh")}"
    shutdown-script         = file("${path.module}/host/shutdown.sh")
    maskwright-kind         = each.key
    maskwright-spec         = "gs://${var.jobs_bucket}/${each.key}/job.json"
    maskwright-mount-point  = var.mount_point
    maskwright-nfs          = local.nfs_export
    maskwright-disk         = each.value.attach_disk ? local.disk_device : null
    maskwright-container    = var.host.container
    maskwright-version      = var.host.version
    maskwright-setup        = var.host.setup
    maskwright-idle-minutes = var.host.idle_minutes == null ? null : tostring(var.host.idle_minutes)
  })

  # A host that came up before it may read its job would wait in vain.
  depends_on = [
    google_storage_bucket_iam_member.reads_dataset,
    google_storage_bucket_iam_member.uses_runs,
    google_storage_bucket_iam_member.reads_jobs,
    google_storage_bucket_iam_member.writes_reports,
    google_storage_bucket_iam_member.makes_claims,
    google_artifact_registry_repository_iam_member.pulls_images,
    google_compute_firewall.inside,
  ]
}

# A warning, not an error, as an image of that name may get docker one day. In 2026 Google's images of TPU hosts have
# none: startup.sh installs it, for which hosts must reach the internet.
check "hosts_can_have_docker" {
  assert {
    condition     = var.nat || var.network != null || !strcontains(try(var.slice.image, ""), "/ubuntu-os-accelerator-images/")
    error_message = "This image has no docker, and without network.nat hosts cannot install it: set nat, or take an image with docker."
  }
}
