resource "google_artifact_registry_repository" "images" {
  repository_id = var.name
  location      = var.region
  format        = "DOCKER"
  description   = "Images of the maskwright environment ${var.name}."
  labels        = var.labels

  # The last ten images stay, whatever their age; of the others, those without a tag go after a month. Each build of
  # another source has its own tag and stays: a job that starts again pulls what it ran. Keeping wins over deleting:
  # docs.cloud.google.com/artifact-registry/docs/repositories/cleanup-policy-overview
  cleanup_policies {
    id     = "keep-last"
    action = "KEEP"
    most_recent_versions {
      keep_count = 10
    }
  }
  cleanup_policies {
    id     = "delete-untagged"
    action = "DELETE"
    condition {
      tag_state  = "UNTAGGED"
      older_than = "2592000s"
    }
  }
  cleanup_policy_dry_run = false
}

# Kueue and JobSet are on registry.k8s.io. Nodes pull them through here, so they need no way to the internet:
# docs.cloud.google.com/artifact-registry/docs/repositories/remote-overview
resource "google_artifact_registry_repository" "mirror" {
  repository_id = "${var.name}-k8s"
  location      = var.region
  format        = "DOCKER"
  mode          = "REMOTE_REPOSITORY"
  description   = "Images of registry.k8s.io for the maskwright environment ${var.name}."
  labels        = var.labels

  remote_repository_config {
    common_repository {
      uri = "https://registry.k8s.io"
    }
  }
}
