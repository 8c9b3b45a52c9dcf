# The GKE cluster. Nodes for jobs come from ComputeClasses, which `maskwright env up` applies in it
# (src/maskwright/cloud/provision/objects.py): GKE creates their node pools when jobs ask, and deletes them when idle.

resource "google_container_cluster" "environment" {
  name            = var.name
  location        = var.cluster.location
  description     = "Of the maskwright environment ${var.name}."
  resource_labels = var.labels

  # It holds no data, and `env down` shows what it deletes. Deleting a cluster from the console needs no protection either.
  deletion_protection = false

  # The default pool is deleted once the cluster is there, in favour of the one below; until then it has its account.
  remove_default_node_pool = true
  initial_node_count       = 1
  node_config {
    machine_type    = var.cluster.machine_type
    service_account = google_service_account.nodes.email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]
  }

  network                   = local.network
  subnetwork                = local.subnetwork
  networking_mode           = "VPC_NATIVE"
  datapath_provider         = "ADVANCED_DATAPATH" # Dataplane V2, which enforces NetworkPolicy
  default_max_pods_per_node = 32                  # a /26 for each node: 1,024 nodes in the /16 below
  ip_allocation_policy {
    cluster_ipv4_cidr_block       = local.pods_range == null ? "/16" : null
    cluster_secondary_range_name  = local.pods_range
    services_secondary_range_name = try(var.network.services_range, null)
  }

  # No address of the control plane: docs.cloud.google.com/kubernetes-engine/docs/concepts/network-isolation. Its DNS name
  # is reachable from everywhere and asks IAM about each request (container.clusters.connect).
  private_cluster_config {
    enable_private_nodes = true
  }
  control_plane_endpoints_config {
    dns_endpoint_config {
      allow_external_traffic    = true
      enable_k8s_tokens_via_dns = false
      enable_k8s_certs_via_dns  = false
    }
    ip_endpoints_config {
      enabled = false
    }
  }

  workload_identity_config {
    workload_pool = "${var.project}.svc.id.goog"
  }
  addons_config {
    gcp_filestore_csi_driver_config {
      enabled = true
    }
    gcs_fuse_csi_driver_config {
      enabled = true
    }
    gce_persistent_disk_csi_driver_config {
      enabled = true
    }
  }
  enable_shielded_nodes = true
  release_channel {
    channel = var.cluster.release_channel
  }
  node_pool_auto_config {
    node_kubelet_config {
      insecure_kubelet_readonly_port_enabled = "FALSE"
    }
  }

  lifecycle {
    ignore_changes = [initial_node_count, node_config] # those of the default pool, which is gone
    precondition {
      condition     = var.cluster.location == var.region || startswith(var.cluster.location, "${var.region}-")
      error_message = "var.cluster.location must be var.region, or a zone of it."
    }
  }
  depends_on = [google_project_iam_member.nodes]
}

# For Kueue, JobSet and GKE's own pods. Jobs cannot land here: they select a ComputeClass, whose nodes have its label.
resource "google_container_node_pool" "system" {
  name               = "system"
  cluster            = google_container_cluster.environment.name
  location           = google_container_cluster.environment.location
  node_locations     = [var.zone] # a regional cluster would have nodes in each of its zones
  initial_node_count = 1

  autoscaling {
    total_min_node_count = 1
    total_max_node_count = 3
    location_policy      = "ANY"
  }
  management {
    auto_repair  = true
    auto_upgrade = true
  }
  node_config {
    machine_type    = var.cluster.machine_type
    disk_size_gb    = 50
    service_account = google_service_account.nodes.email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"] # its roles limit what it may do
    resource_labels = var.labels
    workload_metadata_config {
      mode = "GKE_METADATA"
    }
    shielded_instance_config {
      enable_secure_boot          = true
      enable_integrity_monitoring = true
    }
  }

  lifecycle {
    ignore_changes = [initial_node_count]
  }
  depends_on = [google_artifact_registry_repository_iam_member.nodes_pull]
}
