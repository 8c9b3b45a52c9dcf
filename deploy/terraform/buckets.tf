# The buckets of data and of runs with their checkpoints: private, and safe from a destroy while var.delete_data is false. With deletion_policy PREVENT the provider refuses to delete the bucket, with force_destroy false to delete
# what is in it (registry.terraform.io/providers/hashicorp/google/latest/docs/resources/storage_bucket). It reads both
# from the state, so an apply with delete_data = true comes before the destroy.

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
  # Versions are the way back. Google's soft delete would keep each of them for a week more, and bill it.
  soft_delete_policy {
    retention_duration_seconds = 0
  }
  # Objects that were overwritten or deleted can be brought back for a month.
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
  # Versions are the way back. Google's soft delete would keep each of them for a week more, and bill it.
  soft_delete_policy {
    retention_duration_seconds = 0
  }
  # A run replaces its checkpoints and its status again and again, so old versions stay for a week, not a month.
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
