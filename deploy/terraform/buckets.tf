# Data, and runs with their checkpoints: private, versioned, and not to be destroyed while var.delete_data is false.
# deletion_policy PREVENT makes the provider refuse to delete the bucket, force_destroy false to delete what is in it
# (registry.terraform.io/providers/hashicorp/google/latest/docs/resources/storage_bucket). Both are read from the state:
# an apply with delete_data = true comes before the destroy.

resource "google_storage_bucket" "dataset" {
  name                        = var.dataset_bucket
  location                    = upper(var.bucket_location)
  labels                      = var.labels
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = var.delete_data
  deletion_policy             = var.delete_data ? "DELETE" : "PREVENT"

  versioning {
    enabled = true
  }
  # Versions bring things back; Google's soft delete would keep, and bill, each of them for a week more.
  soft_delete_policy {
    retention_duration_seconds = 0
  }
  # What was overwritten or deleted can be brought back for a month.
  lifecycle_rule {
    action {
      type = "Delete"
    }
    condition {
      days_since_noncurrent_time = 30
    }
  }
  lifecycle_rule {
    action {
      type = "AbortIncompleteMultipartUpload"
    }
    condition {
      age = 7
    }
  }
}

resource "google_storage_bucket" "runs" {
  name                        = var.runs_bucket
  location                    = upper(var.bucket_location)
  labels                      = var.labels
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = var.delete_data
  deletion_policy             = var.delete_data ? "DELETE" : "PREVENT"

  versioning {
    enabled = true
  }
  # Versions bring things back; Google's soft delete would keep, and bill, each of them for a week more.
  soft_delete_policy {
    retention_duration_seconds = 0
  }
  # A run replaces its checkpoints and its status again and again: a week of what was, not a month.
  lifecycle_rule {
    action {
      type = "Delete"
    }
    condition {
      days_since_noncurrent_time = 7
    }
  }
  lifecycle_rule {
    action {
      type = "AbortIncompleteMultipartUpload"
    }
    condition {
      age = 7
    }
  }
}
