# The data disk. The Job of `env seed` writes it, then the pods of all jobs read it. Another size or a new seeding makes a
# disk of another name.

resource "google_compute_disk" "data" {
  count  = var.disk == null ? 0 : 1
  name   = var.disk.name
  zone   = var.zone
  type   = var.disk.type
  size   = var.disk.size_gb
  labels = var.labels

  # Hyperdisk ML is told how it is shared, and READ_ONLY_MANY cannot be taken back; persistent disks are shared
  # read-only as they are: docs.cloud.google.com/compute/docs/disks/sharing-disks-between-vms
  access_mode = var.disk.type == "hyperdisk-ml" ? (var.disk.seeded ? "READ_ONLY_MANY" : "READ_WRITE_SINGLE") : null
}
