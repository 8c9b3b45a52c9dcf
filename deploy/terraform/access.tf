# The service account of hosts. Each role is granted on the one resource that it is for; none reaches Terraform's state,
# and none is on the project: whoever could grant that one could grant every other too.

resource "google_service_account" "train" {
  account_id   = "${var.name}-train"
  display_name = "maskwright ${var.name}: hosts"
  description  = "Hosts and the seeding machine of the maskwright environment ${var.name}."
}

resource "google_storage_bucket_iam_member" "reads_dataset" {
  bucket = google_storage_bucket.dataset.name
  role   = "roles/storage.objectViewer"
  member = google_service_account.train.member
}

# User, not Admin: it reads and writes objects, and cannot change the bucket or who else sees it.
resource "google_storage_bucket_iam_member" "uses_runs" {
  bucket = google_storage_bucket.runs.name
  role   = "roles/storage.objectUser"
  member = google_service_account.train.member
}

# Hosts read their orders and cannot write them, or one host that was taken over would have all the others. Listing is
# a right on the bucket, which no condition on the names of objects grants or limits, so this role has no condition.
resource "google_storage_bucket_iam_member" "reads_jobs" {
  bucket = google_storage_bucket.jobs.name
  role   = "roles/storage.objectViewer"
  member = google_service_account.train.member
}

locals {
  # In conditions, which need uniform access: docs.cloud.google.com/iam/docs/conditions-resource-attributes
  objects = "projects/_/buckets/${var.jobs_bucket}/objects"
}

resource "google_storage_bucket_iam_member" "writes_reports" {
  bucket = google_storage_bucket.jobs.name
  role   = "roles/storage.objectUser"
  member = google_service_account.train.member
  condition {
    title      = "reports"
    expression = "resource.name.startsWith('${local.objects}/slice/reports/') || resource.name.startsWith('${local.objects}/group/reports/')"
  }
}

# Creator, not User: replacing an object takes the right to delete it (docs.cloud.google.com/storage/docs/access-control/
# iam-roles), so no host changes the claim of another, or takes back a result and has hosts compute again.
resource "google_storage_bucket_iam_member" "makes_claims" {
  bucket = google_storage_bucket.jobs.name
  role   = "roles/storage.objectCreator"
  member = google_service_account.train.member
  condition {
    title      = "claims and results"
    expression = "resource.name.startsWith('${local.objects}/slice/claims/') || resource.name.startsWith('${local.objects}/slice/results/') || resource.name.startsWith('${local.objects}/group/claims/') || resource.name.startsWith('${local.objects}/group/results/')"
  }
}

resource "google_artifact_registry_repository_iam_member" "pulls_images" {
  project    = var.project
  location   = google_artifact_registry_repository.images.location
  repository = google_artifact_registry_repository.images.repository_id
  role       = "roles/artifactregistry.reader"
  member     = google_service_account.train.member
}
