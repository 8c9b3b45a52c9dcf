# Filestore: the folder over NFS that all jobs read and write.

locals {
  nfs_in = var.network == null ? google_compute_network.environment[0].name : var.network.shared ? var.network.id : basename(var.network.id)
}

resource "google_filestore_instance" "nfs" {
  count       = var.nfs == null ? 0 : 1
  name        = "${var.name}-nfs"
  description = "NFS of the maskwright environment ${var.name}."
  # REGIONAL lives in a region, the others in a zone: docs.cloud.google.com/filestore/docs/service-tiers
  location = var.nfs.tier == "REGIONAL" ? var.region : var.zone
  tier     = var.nfs.tier
  labels   = var.labels

  # Both protect: the first against everybody (console, gcloud), the second against Terraform.
  deletion_protection_enabled = !var.delete_data
  deletion_policy             = var.delete_data ? "DELETE" : "PREVENT"

  file_shares {
    name        = var.nfs.share
    capacity_gb = var.nfs.capacity_gb
  }
  networks {
    network = local.nfs_in
    modes   = ["MODE_IPV4"]
    # The only way that works in a service project: docs.cloud.google.com/filestore/docs/shared-vpc
    connect_mode = try(var.network.shared, false) ? "PRIVATE_SERVICE_ACCESS" : null
  }
}
