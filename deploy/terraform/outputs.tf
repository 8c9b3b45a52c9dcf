# Nothing here is a secret: outputs stand in the state, and whoever reads the state reads them.

output "nfs_address" {
  description = "What hosts mount: address:/share; null without NFS."
  value       = local.nfs_export
}

output "hosts" {
  description = "Number of hosts of the slice and of the group, where they exist."
  value       = { for kind, made in module.hosts : kind => made.hosts }
  precondition {
    condition     = var.disk != null || !anytrue([for wanted in values(local.hosts) : wanted.attach_disk])
    error_message = "attach_disk needs a disk."
  }
  precondition {
    condition     = alltrue([for region in var.regions : contains(keys(local.subnetworks), region)])
    error_message = "var.network needs a subnetwork in each of var.regions."
  }
}

output "service_account" {
  description = "Email of the service account that hosts act as."
  value       = google_service_account.train.email
}

output "repository" {
  description = "Where images are pushed to."
  value       = "${google_artifact_registry_repository.images.location}-docker.pkg.dev/${var.project}/${google_artifact_registry_repository.images.repository_id}"
}

output "buckets" {
  description = "Names of the buckets."
  value = {
    dataset = google_storage_bucket.dataset.name
    runs    = google_storage_bucket.runs.name
    jobs    = google_storage_bucket.jobs.name
  }
}
