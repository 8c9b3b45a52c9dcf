# Who hosts are. Each role is on the one thing that it is for; none reaches Terraform's state.

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

# Users, not Admin: objects only, no say over the bucket and who else sees it.
resource "google_storage_bucket_iam_member" "uses_runs" {
  bucket = google_storage_bucket.runs.name
  role   = "roles/storage.objectUser"
  member = google_service_account.train.member
}

# Cloud Logging has no smaller place to grant this on than the project.
resource "google_project_iam_member" "writes_logs" {
  project = var.project
  role    = "roles/logging.logWriter"
  member  = google_service_account.train.member
}

resource "google_artifact_registry_repository_iam_member" "pulls_images" {
  project    = var.project
  location   = google_artifact_registry_repository.images.location
  repository = google_artifact_registry_repository.images.repository_id
  role       = "roles/artifactregistry.reader"
  member     = google_service_account.train.member
}
