# The temporary machine that fills the disk. `env seed` makes it and deletes it; where `env seed` was cut off, Google
# deletes it after max_hours. Its boot disk goes with it, the data disk stays.

resource "google_compute_instance" "seeder" {
  count        = var.seeder == null ? 0 : 1
  name         = "${var.name}-seeder"
  description  = "Fills the data disk of the maskwright environment ${var.name}."
  machine_type = var.seeder.machine_type
  zone         = var.zone
  labels       = var.labels

  boot_disk {
    auto_delete = true
    initialize_params {
      image  = var.seeder.image
      size   = 50
      type   = var.seeder.boot_disk
      labels = var.labels
    }
  }
  attached_disk {
    source      = one(google_compute_disk.data[*].self_link)
    device_name = local.disk_device
    mode        = "READ_WRITE"
  }
  network_interface {
    subnetwork = local.subnetworks[var.region]
  }
  service_account {
    email  = google_service_account.train.email
    scopes = ["cloud-platform"] # its roles limit what it may do
  }
  scheduling {
    provisioning_model          = "STANDARD"
    automatic_restart           = true
    instance_termination_action = "DELETE"
    max_run_duration {
      seconds = var.seeder.max_hours * 3600
    }
  }
  shielded_instance_config {
    enable_secure_boot          = true
    enable_vtpm                 = true
    enable_integrity_monitoring = true
  }
  metadata = { for key, value in merge(local.locked_down, {
    startup-script          = "${local.common_script}${file("${path.module}/host/seed.sh")}"
    maskwright-seed-source  = var.seeder.source
    maskwright-seed-prepare = var.seeder.prepare
    maskwright-seed-result  = var.seeder.result
    maskwright-disk         = local.disk_device
  }) : key => value if value != null }

  lifecycle {
    precondition {
      condition     = var.disk != null && try(!var.disk.seeded, false)
      error_message = "A seeding machine needs a disk that is not seeded: a seeded one is read-only."
    }
  }
  depends_on = [
    google_storage_bucket_iam_member.reads_dataset,
    google_storage_bucket_iam_member.uses_runs,
    google_storage_bucket_iam_member.reads_jobs,
  ]
}
