# Two service accounts: of jobs, and of nodes. Pods never get the nodes' account (GKE_METADATA). None of their roles reaches
# Terraform's state.

resource "google_service_account" "train" {
  account_id   = "${var.name}-train"
  display_name = "maskwright ${var.name}: jobs"
  description  = "Jobs of the maskwright environment ${var.name}."
}

# Kubernetes's ServiceAccount `train` in the namespace `maskwright` acts as it. The pool exists once the project has a
# cluster with Workload Identity: docs.cloud.google.com/kubernetes-engine/docs/how-to/workload-identity
resource "google_service_account_iam_member" "jobs_act_as_train" {
  service_account_id = google_service_account.train.name
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:${var.project}.svc.id.goog[maskwright/train]"
  depends_on         = [google_container_cluster.environment]
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

resource "google_service_account" "nodes" {
  account_id   = "${var.name}-nodes"
  display_name = "maskwright ${var.name}: nodes"
  description  = "Nodes of the maskwright environment ${var.name}."
}

# The one role on the project, which Google's page asks for: logs and metrics can be written nowhere narrower.
# docs.cloud.google.com/kubernetes-engine/docs/how-to/service-accounts#node-service-accounts
resource "google_project_iam_member" "nodes" {
  project = var.project
  role    = "roles/container.defaultNodeServiceAccount"
  member  = google_service_account.nodes.member
}

resource "google_artifact_registry_repository_iam_member" "nodes_pull" {
  for_each   = { images = google_artifact_registry_repository.images, mirror = google_artifact_registry_repository.mirror }
  project    = var.project
  location   = each.value.location
  repository = each.value.repository_id
  role       = "roles/artifactregistry.reader"
  member     = google_service_account.nodes.member
}
