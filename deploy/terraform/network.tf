# A network of the environment's own, or none where var.network names one that exists. Nothing in ours has a public
# address, and no rule lets anybody in besides GKE's own for its nodes and pods. Nodes reach Google's services by Private
# Google Access, and the internet only through the gateway of var.nat.

locals {
  network    = var.network == null ? google_compute_network.environment[0].id : var.network.id
  subnetwork = var.network == null ? google_compute_subnetwork.region[0].id : var.network.subnetwork
  pods_range = try(var.network.pods_range, null)
}

resource "google_compute_network" "environment" {
  count                   = var.network == null ? 1 : 0
  name                    = "${var.name}-net"
  description             = "Of the maskwright environment ${var.name}."
  auto_create_subnetworks = false
  routing_mode            = "REGIONAL"

  lifecycle {
    precondition {
      condition     = startswith(var.zone, "${var.region}-")
      error_message = "var.zone must be in var.region."
    }
  }
}

# GKE adds ranges for pods and services, and takes them away with the cluster.
resource "google_compute_subnetwork" "region" {
  count                    = var.network == null ? 1 : 0
  name                     = "${var.name}-${var.region}"
  network                  = google_compute_network.environment[0].id
  region                   = var.region
  ip_cidr_range            = "10.0.0.0/20"
  private_ip_google_access = true

  lifecycle {
    ignore_changes = [secondary_ip_range]
  }
}

resource "google_compute_router" "nat" {
  count   = var.nat && var.network == null ? 1 : 0
  name    = "${var.name}-${var.region}"
  network = google_compute_network.environment[0].id
  region  = var.region
}

resource "google_compute_router_nat" "nat" {
  count                              = var.nat && var.network == null ? 1 : 0
  name                               = "${var.name}-${var.region}"
  router                             = google_compute_router.nat[0].name
  region                             = var.region
  nat_ip_allocate_option             = "AUTO_ONLY"
  source_subnetwork_ip_ranges_to_nat = "ALL_SUBNETWORKS_ALL_IP_RANGES"
}
