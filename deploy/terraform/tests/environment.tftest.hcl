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
  name            = "lab1"
  labels          = { maskwright-environment = "lab1", team = "nlp" }
  cluster         = { location = "us-east5-b", release_channel = "REGULAR", machine_type = "e2-standard-4" }
  bucket_location = "us-east5"
  dataset_bucket  = "lab-proj-lab1-dataset"
  runs_bucket     = "lab-proj-lab1-runs"
}

run "smallest" {
  command = plan
  assert {
    condition     = output.nfs == null && length(google_compute_disk.data) + length(google_compute_router_nat.nat) == 0
    error_message = "what is null does not exist"
  }
  assert {
    condition = alltrue([
      for bucket in [google_storage_bucket.dataset, google_storage_bucket.runs] :
      bucket.uniform_bucket_level_access && bucket.public_access_prevention == "enforced" &&
      bucket.versioning[0].enabled && bucket.deletion_policy == "PREVENT" && !bucket.force_destroy &&
      bucket.soft_delete_policy[0].retention_duration_seconds == 0 &&
      bucket.labels == tomap({ maskwright-environment = "lab1", team = "nlp" })
    ]) && one(google_storage_bucket.runs.lifecycle_rule[0].condition).days_since_noncurrent_time == 7
    error_message = "buckets are private, labelled, protected and versioned; old versions of checkpoints go"
  }
  assert {
    condition = (
      google_container_cluster.environment.private_cluster_config[0].enable_private_nodes &&
      google_container_cluster.environment.control_plane_endpoints_config[0].dns_endpoint_config[0].allow_external_traffic &&
      !google_container_cluster.environment.control_plane_endpoints_config[0].ip_endpoints_config[0].enabled &&
      google_container_cluster.environment.workload_identity_config[0].workload_pool == "lab-proj.svc.id.goog" &&
      google_container_cluster.environment.datapath_provider == "ADVANCED_DATAPATH" &&
      google_container_cluster.environment.enable_shielded_nodes
    )
    error_message = "nodes have no addresses, the control plane has a name only, and pods have identities"
  }
  assert {
    condition = (
      google_container_node_pool.system.node_config[0].workload_metadata_config[0].mode == "GKE_METADATA" &&
      google_container_node_pool.system.node_config[0].shielded_instance_config[0].enable_secure_boot &&
      google_container_node_pool.system.autoscaling[0].total_max_node_count == 3
    )
    error_message = "pods do not get the nodes' account"
  }
}

run "everything" {
  variables {
    nat     = true
    nfs     = { tier = "REGIONAL", capacity_gb = 2048, share = "code" }
    disk    = { name = "lab1-data-1", type = "hyperdisk-ml", size_gb = 100, seeded = true }
    cluster = { location = "us-east5", release_channel = "RAPID", machine_type = "e2-standard-2" }
  }
  assert {
    condition = (
      output.nfs.address == "10.9.9.9" && output.nfs.handle == "modeInstance/us-east5/lab1-nfs/code" &&
      google_filestore_instance.nfs[0].deletion_protection_enabled
    )
    error_message = "REGIONAL lives in the region, and the driver finds it"
  }
  assert {
    condition = (
      google_compute_disk.data[0].access_mode == "READ_ONLY_MANY" && length(google_compute_router_nat.nat) == 1 &&
      google_compute_subnetwork.region[0].private_ip_google_access
    )
    error_message = "a seeded disk is for many readers"
  }
}

run "seeding" {
  command = plan
  variables {
    disk = { name = "lab1-data-1", type = "hyperdisk-ml", size_gb = 100, seeded = false }
  }
  assert {
    condition     = google_compute_disk.data[0].access_mode == "READ_WRITE_SINGLE"
    error_message = "one node writes it"
  }
}

run "network_of_a_host_project" {
  command = plan
  variables {
    network = {
      id         = "projects/host-proj/global/networks/shared-vpc", subnetwork = "projects/host-proj/regions/us-east5/subnetworks/a"
      pods_range = "pods", services_range = "services", shared = true
    }
    nat = true
    nfs = {}
  }
  assert {
    condition     = length(google_compute_network.environment) + length(google_compute_subnetwork.region) + length(google_compute_router.nat) == 0
    error_message = "nothing is made in it"
  }
  assert {
    condition = (
      google_container_cluster.environment.subnetwork == "projects/host-proj/regions/us-east5/subnetworks/a" &&
      google_container_cluster.environment.ip_allocation_policy[0].cluster_secondary_range_name == "pods" &&
      google_filestore_instance.nfs[0].networks[0].network == "projects/host-proj/global/networks/shared-vpc" &&
      google_filestore_instance.nfs[0].networks[0].connect_mode == "PRIVATE_SERVICE_ACCESS"
    )
    error_message = "the cluster is in its subnetwork and ranges, NFS behind private services access"
  }
}

run "protection_is_taken_off_on_request" {
  command = plan
  variables {
    delete_data = true
    nfs         = {}
  }
  assert {
    condition = (
      google_storage_bucket.runs.force_destroy && google_storage_bucket.runs.deletion_policy == "DELETE" &&
      google_filestore_instance.nfs[0].deletion_policy == "DELETE" && !google_filestore_instance.nfs[0].deletion_protection_enabled
    )
    error_message = "delete_data takes the protection off"
  }
}

run "zone_of_another_region" {
  command = plan
  variables {
    zone = "us-east1-b"
  }
  expect_failures = [google_compute_network.environment]
}

run "cluster_of_another_region" {
  command = plan
  variables {
    cluster = { location = "us-east1", release_channel = "REGULAR", machine_type = "e2-standard-4" }
  }
  expect_failures = [google_container_cluster.environment]
}

run "variables_are_refused" {
  command = plan
  variables {
    name   = "Lab_1"
    labels = { team = "nlp" }
    nfs    = { tier = "BASIC_SSD", capacity_gb = 1024 }
    disk   = { name = "d", type = "pd-extreme", size_gb = 100, seeded = false }
  }
  expect_failures = [var.name, var.labels, var.nfs, var.disk]
}
