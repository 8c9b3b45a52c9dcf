# A network of the environment's own, or none where var.network names one that exists. Nothing in ours has a public
# address: people come in through Identity-Aware Proxy, hosts reach Google's services by Private Google Access, and the
# internet only through the gateway of var.nat.

locals {
  # A region's range must not move when another region joins, so it follows from the region's name alone: one of 4096
  # ranges of 4094 hosts each. Two regions that share a range are refused below. No two of 2026 do (tests/cloud).
  subnet_ranges = {
    for region in var.network == null ? var.regions : [] :
    region => cidrsubnet("10.0.0.0/8", 12, parseint(substr(md5(region), 0, 3), 16))
  }

  made        = { for region, subnetwork in google_compute_subnetwork.region : region => subnetwork.id }
  subnetworks = var.network == null ? tomap(local.made) : var.network.subnetworks
}

resource "google_compute_network" "environment" {
  count                   = var.network == null ? 1 : 0
  name                    = "${var.name}-net"
  description             = "Of the maskwright environment ${var.name}."
  auto_create_subnetworks = false
  routing_mode            = "REGIONAL"

  lifecycle {
    precondition {
      condition     = contains(var.regions, var.region) && startswith(var.zone, "${var.region}-")
      error_message = "var.zone must be in var.region, and var.regions must name that region."
    }
  }
}

resource "google_compute_subnetwork" "region" {
  for_each                 = local.subnet_ranges
  name                     = "${var.name}-${each.key}"
  network                  = google_compute_network.environment[0].id
  region                   = each.key
  ip_cidr_range            = each.value
  private_ip_google_access = true

  lifecycle {
    precondition {
      condition     = length(distinct(values(local.subnet_ranges))) == length(local.subnet_ranges)
      error_message = "Two of var.regions fall into the same range of addresses: leave one of them out."
    }
  }
}

# All that comes in is refused, except what these two rules allow.
resource "google_compute_firewall" "inside" {
  count         = var.network == null ? 1 : 0
  name          = "${var.name}-inside"
  description   = "Hosts of ${var.name} among themselves: collectives, rendezvous."
  network       = google_compute_network.environment[0].id
  direction     = "INGRESS"
  source_ranges = sort(values(local.subnet_ranges))
  allow {
    protocol = "all"
  }
}

resource "google_compute_firewall" "iap_ssh" {
  count       = var.network == null ? 1 : 0
  name        = "${var.name}-iap-ssh"
  description = "SSH from Identity-Aware Proxy, which asks who it is."
  network     = google_compute_network.environment[0].id
  direction   = "INGRESS"
  # docs.cloud.google.com/iap/docs/using-tcp-forwarding: the addresses that it forwards from
  source_ranges = ["35.235.240.0/20"]
  allow {
    protocol = "tcp"
    ports    = ["22"]
  }
}

resource "google_compute_router" "nat" {
  for_each = toset(var.nat && var.network == null ? var.regions : [])
  name     = "${var.name}-${each.key}"
  network  = google_compute_network.environment[0].id
  region   = each.key
}

resource "google_compute_router_nat" "nat" {
  for_each                           = google_compute_router.nat
  name                               = "${var.name}-${each.key}"
  router                             = each.value.name
  region                             = each.key
  nat_ip_allocate_option             = "AUTO_ONLY"
  source_subnetwork_ip_ranges_to_nat = "ALL_SUBNETWORKS_ALL_IP_RANGES"
}
