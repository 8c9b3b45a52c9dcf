# The whole configuration: what exists when it is asked for, how it is closed off, and which variables are refused.

mock_provider "google" {
  mock_resource "google_filestore_instance" {
    defaults = { networks = { ip_addresses = ["10.9.9.9"] } }
  }
}

variables {
  project         = "lab-proj"
  region          = "us-east5"
  zone            = "us-east5-b"
  regions         = ["us-east5"]
  name            = "lab1"
  labels          = { maskwright-environment = "lab1", team = "nlp" }
  bucket_location = "us-east5"
  dataset_bucket  = "lab-proj-lab1-dataset"
  runs_bucket     = "lab-proj-lab1-runs"
  jobs_bucket     = "lab-proj-lab1-jobs"
  host            = { container = "us-east5-docker.pkg.dev/lab-proj/lab1/maskwright:1", version = "1" }
}

run "empty" {
  command = plan
  assert {
    condition = (
      output.hosts == {} && output.nfs_address == null && length(google_compute_disk.data) == 0 &&
      length(google_compute_instance.seeder) == 0 && length(google_compute_router_nat.nat) == 0
    )
    error_message = "what is null does not exist"
  }
  assert {
    condition = alltrue([
      for bucket in [google_storage_bucket.dataset, google_storage_bucket.runs, google_storage_bucket.jobs] :
      bucket.uniform_bucket_level_access && bucket.public_access_prevention == "enforced" &&
      bucket.versioning[0].enabled == (bucket.name != "lab-proj-lab1-jobs") && bucket.deletion_policy == "PREVENT" && !bucket.force_destroy &&
      bucket.soft_delete_policy[0].retention_duration_seconds == 0 &&
      bucket.labels == tomap({ maskwright-environment = "lab1", team = "nlp" })
    ])
    error_message = "buckets are private, labelled and protected, and versioned except for jobs"
  }
  assert {
    condition = (
      one(google_storage_bucket.runs.lifecycle_rule[0].condition).days_since_noncurrent_time == 7 &&
      length(google_storage_bucket.jobs.lifecycle_rule) == 1 &&
      one(google_storage_bucket.jobs.lifecycle_rule[0].condition).age == 90 &&
      one(google_storage_bucket.jobs.lifecycle_rule[0].condition).matches_suffix == tolist([".txt"])
    )
    error_message = "old versions of checkpoints and pieces of logs go, and orders, claims and heartbeats stay"
  }
  assert {
    condition = (
      google_compute_firewall.iap_ssh[0].source_ranges == toset(["35.235.240.0/20"]) &&
      alltrue([for allow in google_compute_firewall.iap_ssh[0].allow : allow.protocol == "tcp" && allow.ports == tolist(["22"])]) &&
      google_compute_firewall.inside[0].source_ranges == toset([google_compute_subnetwork.region["us-east5"].ip_cidr_range])
    )
    error_message = "in come SSH from Identity-Aware Proxy, and hosts"
  }
}

run "everything" {
  variables {
    nat     = true
    regions = ["us-east5", "us-east1"]
    nfs     = { tier = "REGIONAL", capacity_gb = 2048, share = "code" }
    disk    = { name = "lab1-data-1", type = "hyperdisk-ml", size_gb = 100, seeded = true }
    slice = {
      machine_type       = "ct6e-standard-4t", topology = "4x4", hosts = 4, zone = "us-east5-b", region = "us-east5"
      accelerator        = "tpu", boot_disk = "hyperdisk-balanced", data_disks = ["hyperdisk-ml"]
      provisioning_model = "SPOT", image = "i", attach_disk = true
    }
    group = {
      machine_type       = "g2-standard-12", hosts = 3, zone = "us-east1-c", region = "us-east1"
      accelerator        = "gpu", boot_disk = "pd-balanced", data_disks = ["pd-balanced"]
      provisioning_model = "STANDARD", image = "i", attach_disk = false
    }
  }
  assert {
    condition     = output.hosts == { slice = 4, group = 3 } && output.nfs_address == "10.9.9.9:/code"
    error_message = "slice and group side by side, in two regions"
  }
  assert {
    condition = (
      google_filestore_instance.nfs[0].location == "us-east5" && google_filestore_instance.nfs[0].deletion_protection_enabled &&
      google_compute_disk.data[0].access_mode == "READ_ONLY_MANY" && length(google_compute_router_nat.nat) == 2
    )
    error_message = "REGIONAL lives in the region, a seeded disk is for many readers, each region has its gateway"
  }
  assert {
    condition = (
      length(distinct([for subnet in google_compute_subnetwork.region : subnet.ip_cidr_range])) == 2 &&
      alltrue([for subnet in google_compute_subnetwork.region : subnet.private_ip_google_access])
    )
    error_message = "regions have ranges of their own, and reach Google without public addresses"
  }
}

run "seeding" {
  command = plan
  variables {
    disk   = { name = "lab1-data-1", type = "hyperdisk-ml", size_gb = 100, seeded = false }
    seeder = { machine_type = "n2-standard-8", boot_disk = "pd-balanced", image = "i", source = "gs://b/p", result = "gs://r/x", max_hours = 12 }
  }
  assert {
    condition = (
      google_compute_disk.data[0].access_mode == "READ_WRITE_SINGLE" &&
      google_compute_instance.seeder[0].scheduling[0].max_run_duration[0].seconds == 43200 &&
      google_compute_instance.seeder[0].scheduling[0].instance_termination_action == "DELETE" &&
      google_compute_instance.seeder[0].metadata["maskwright-seed-source"] == "gs://b/p" &&
      !contains(keys(google_compute_instance.seeder[0].metadata), "maskwright-seed-prepare") &&
      length(google_compute_instance.seeder[0].network_interface[0].access_config) == 0
    )
    error_message = "the seeding machine writes, and is deleted by Google if by nobody else"
  }
}

run "network_of_a_host_project" {
  command = plan
  variables {
    network = {
      id = "projects/host-proj/global/networks/shared-vpc", shared = true
      subnetworks = {
        us-east5 = "projects/host-proj/regions/us-east5/subnetworks/a", us-east1 = "projects/host-proj/regions/us-east1/subnetworks/b"
      }
    }
    regions = ["us-east5", "us-east1"]
    nat     = true
    nfs     = {}
    disk    = { name = "lab1-data-1", type = "hyperdisk-ml", size_gb = 100, seeded = false }
    seeder  = { machine_type = "n2-standard-8", boot_disk = "pd-balanced", image = "i", source = "gs://b/p", result = "gs://r/x", max_hours = 12 }
  }
  assert {
    condition = (
      length(google_compute_network.environment) + length(google_compute_subnetwork.region) == 0 &&
      length(google_compute_firewall.inside) + length(google_compute_firewall.iap_ssh) + length(google_compute_router.nat) == 0
    )
    error_message = "nothing is made in it"
  }
  assert {
    condition = (
      google_compute_instance.seeder[0].network_interface[0].subnetwork == "projects/host-proj/regions/us-east5/subnetworks/a" &&
      google_filestore_instance.nfs[0].networks[0].network == "projects/host-proj/global/networks/shared-vpc" &&
      google_filestore_instance.nfs[0].networks[0].connect_mode == "PRIVATE_SERVICE_ACCESS"
    )
    error_message = "machines are in the region's subnetwork, NFS behind private services access"
  }
}

run "network_of_this_project_without_a_subnetwork_for_a_region" {
  command = plan
  variables {
    network = {
      id          = "projects/lab-proj/global/networks/default", shared = false
      subnetworks = { us-east5 = "projects/lab-proj/regions/us-east5/subnetworks/default" }
    }
    regions = ["us-east5", "us-east1"]
    nfs     = {}
  }
  assert {
    condition = (
      google_filestore_instance.nfs[0].networks[0].network == "default" &&
      google_filestore_instance.nfs[0].networks[0].connect_mode == null
    )
    error_message = "NFS of a network in this project is peered directly"
  }
  expect_failures = [output.hosts]
}

run "protection_is_taken_off_on_request" {
  command = plan
  variables {
    delete_data = true
    nfs         = {}
  }
  assert {
    condition = (
      google_storage_bucket.runs.force_destroy && google_storage_bucket.jobs.force_destroy && google_storage_bucket.runs.deletion_policy == "DELETE" &&
      google_filestore_instance.nfs[0].deletion_policy == "DELETE" && !google_filestore_instance.nfs[0].deletion_protection_enabled
    )
    error_message = "delete_data takes the protection off"
  }
}

run "seeded_disks_are_not_written" {
  command = plan
  variables {
    disk   = { name = "lab1-data-1", type = "hyperdisk-ml", size_gb = 100, seeded = true }
    seeder = { machine_type = "n2-standard-8", boot_disk = "pd-balanced", image = "i", source = "gs://b/p", result = "gs://r/x", max_hours = 12 }
  }
  expect_failures = [google_compute_instance.seeder]
}

run "attach_without_a_disk" {
  command = plan
  variables {
    slice = {
      machine_type       = "ct6e-standard-4t", topology = "2x2", hosts = 1, zone = "us-east5-b", region = "us-east5"
      accelerator        = "tpu", boot_disk = "hyperdisk-balanced", data_disks = ["hyperdisk-ml"]
      provisioning_model = "SPOT", image = "i", attach_disk = true
    }
  }
  expect_failures = [output.hosts]
}

run "image_without_docker" {
  command = plan
  variables {
    slice = {
      machine_type = "ct6e-standard-4t", topology = "2x2", hosts = 1, zone = "us-east5-b", region = "us-east5"
      accelerator  = "tpu", boot_disk = "hyperdisk-balanced", data_disks = ["hyperdisk-ml"], provisioning_model = "SPOT"
      image        = "projects/ubuntu-os-accelerator-images/global/images/family/f", attach_disk = false
    }
  }
  expect_failures = [check.hosts_can_have_docker]
}

run "zone_of_another_region" {
  command = plan
  variables {
    zone = "us-east1-b"
  }
  expect_failures = [google_compute_network.environment]
}

run "variables_are_refused" {
  command = plan
  variables {
    name   = "Lab_1"
    labels = { team = "nlp" }
    nfs    = { tier = "BASIC_SSD", capacity_gb = 1024 }
    disk   = { name = "d", type = "pd-extreme", size_gb = 100, seeded = false }
    slice = {
      machine_type       = "ct6e-standard-4t", topology = "4x4", hosts = 4, zone = "us-east5-b", region = "us-east5"
      accelerator        = "tpu", boot_disk = "hyperdisk-balanced", data_disks = ["hyperdisk-ml"]
      provisioning_model = "PREEMPTIBLE", image = "i", attach_disk = false
    }
    group = {
      machine_type       = "g2-standard-12", hosts = 0, zone = "us-east5-b", region = "us-east5"
      accelerator        = "gpu", boot_disk = "pd-balanced", data_disks = ["pd-balanced"]
      provisioning_model = "PREEMPTIBLE", image = "i", attach_disk = false
    }
  }
  expect_failures = [var.name, var.labels, var.nfs, var.disk, var.slice, var.group]
}
