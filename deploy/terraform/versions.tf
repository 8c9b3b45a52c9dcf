terraform {
  # 1.7 can test with a stand-in for the provider; OpenTofu 1.7 can too.
  required_version = ">= 1.7"
  required_providers {
    google = {
      source = "hashicorp/google"
      # Exactly the one that the tests' stand-in has the schema of. `maskwright env` keeps the hashes that the registry
      # signed for it beside the state, so all users of an environment run the same bytes.
      version = "8.7.0"
    }
  }
  # Bucket and prefix are given to `init`: one bucket holds the states of all environments of a project.
  backend "gcs" {}
}

provider "google" {
  project = var.project
  region  = var.region
  zone    = var.zone
}
